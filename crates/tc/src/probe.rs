//! Detects missing kernel modules by trying to use them.

use netlink::{Connection, Filter, Handle, Packets, Place, Request};

use crate::{BitsPerSecond, Burst, Error, Limit, module};

/// Returns the modules that limits need and the kernel lacks. This function creates one object of
/// each kind in the namespace of `connection` and leaves the objects there, so the namespace should
/// be a temporary one. Without [`module::HTB`], it cannot try [`module::U32`].
///
/// # Errors
/// [`Error::Netlink`]: the kernel refused a request, but not because a module is missing.
pub fn missing(connection: &Connection) -> Result<Vec<&'static str>, Error> {
    let lo = connection.link("lo")?.index;
    let root = |major| Place::new(lo, Handle::ROOT, Handle::new(major, 0));
    let htb = Handle::new(1, 0);
    let filter = Filter {
        priority: 1,
        packets: Packets::All,
        class: htb,
    };
    let rate = BitsPerSecond::MAX;
    let burst = Burst::derived(rate, 1500);
    let limit = Limit { rate, burst };
    let bucket = limit.bucket(limit.plain_queue());
    let mut missing = Vec::new();
    for (module, request) in [
        (module::HTB, Request::add_htb(root(1), 0)),
        (module::U32, Request::add_filter(lo, htb, &filter)),
        (module::TBF, Request::set_tbf(root(2), &bucket)),
        (
            module::FQ_CODEL,
            Request::set_fq_codel(root(3), &limit.fair_queue()),
        ),
    ] {
        if module == module::U32 && !missing.is_empty() {
            continue;
        }
        match connection.execute([request]) {
            Err(error) if error.is_unknown_kind() => missing.push(module),
            tried => tried?,
        }
    }
    Ok(missing)
}
