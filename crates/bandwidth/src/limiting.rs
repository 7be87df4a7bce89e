//! The limits of one sandbox, for ADD, CHECK and RELOAD.
//!
//! A limit changes in place: each step replaces an old setting by the new one. The rollback removes
//! only what the failed verb added, and does not restore replaced settings. So after a failure,
//! each direction of a live sandbox has its old or its new limit, and a repetition of the verb
//! completes the change.

use anyhow::Context as _;
use cni::{AddRequest, Error, Undo};
use netlink::Link;
use tc::{InstalledQdiscs, Limit, Traffic};

use crate::backstop::{self, Backstop};
use crate::pair::Pair;
use crate::record::{self, Record};
use crate::{Asked, Direction, ifb};

/// A sandbox, and the traffic that its limits apply to.
pub(crate) struct Limiting<'a> {
    pub request: &'a AddRequest,
    pub traffic: &'a Traffic,
    pub pair: Pair,
}

impl<'a> Limiting<'a> {
    /// Finds the sandbox's veth pair.
    ///
    /// # Errors
    /// As [`Pair::find`].
    pub fn of(request: &'a AddRequest, traffic: &'a Traffic) -> anyhow::Result<Self> {
        Pair::find(request).map(|pair| Self {
            request,
            traffic,
            pair,
        })
    }

    /// Returns the limit `asked` for the MTU of the pair.
    ///
    /// # Errors
    /// As [`Asked::limit`].
    pub fn limit(&self, asked: &Asked) -> Result<Limit, Error> {
        asked.limit(self.pair.host_link.mtu)
    }

    /// Adds to an error of [`Pair::place`] the path of the sandbox, if the place is in the sandbox.
    fn located<T>(&self, direction: Direction, found: Result<T, tc::Error>) -> anyhow::Result<T> {
        match direction {
            Direction::Ingress => Ok(found?),
            Direction::Egress => {
                found.with_context(|| format!("in {}", self.request.netns.display()))
            }
        }
    }

    /// Returns the ifb by which the Go plugin limits what the sandbox sends; `None` if there is none.
    ///
    /// # Errors
    /// As [`ifb::behind`].
    pub fn find_ifb(&self) -> anyhow::Result<Option<Link>> {
        ifb::behind(&self.pair, &self.request.attachment)
    }

    /// Computes the backstop (second limit in `nf_tables`) for the egress limit `limit`.
    ///
    /// # Errors
    /// Code 7: the rate is too high for `nf_tables`.
    pub fn backstop(&self, limit: &Limit) -> Result<Backstop, Error> {
        let owner = self.request.attachment.owner();
        Backstop::of(limit, self.traffic, &self.pair.host_link, &owner)
    }

    /// Limits a direction. What the sandbox sends is also limited by the backstop. An ifb of the Go
    /// plugin stays until [`Self::delete_ifb`].
    ///
    /// # Errors
    /// - Code 7: the rate is too high for `nf_tables`.
    /// - Code 100: another program set a root qdisc on the link, or the kernel refuses a request.
    pub fn set(
        &'a self,
        direction: Direction,
        limit: &Limit,
        undo: &mut Undo<'a>,
    ) -> anyhow::Result<()> {
        cni::step("set a limit");
        let place = self.pair.place(direction);
        let held = self.located(direction, place.held())?;
        self.with_backstop((direction, &held, limit), undo, |undo| {
            if !held.is_limited() {
                undo.push("remove the limit", move || Ok(place.remove_anew()?));
            }
            place.ensure(&held, limit, self.traffic)
        })
    }

    /// Changes the limit of a direction to `limit` if this plugin set the present one. A limit of
    /// another program, such as the Go plugin, stays. Also adds or updates the backstop.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn change(
        &'a self,
        direction: Direction,
        limit: &Limit,
        undo: &mut Undo<'a>,
    ) -> anyhow::Result<()> {
        let place = self.pair.place(direction);
        let held = match place.held() {
            Err(tc::Error::Foreign { .. }) => InstalledQdiscs::default(),
            held => self.located(direction, held)?,
        };
        self.with_backstop((direction, &held, limit), undo, |_| {
            place.change(&held, limit, self.traffic)
        })
    }

    /// Calls `change`, which replaces the limit `held` by `limit`. For egress, also adds or updates
    /// the backstop: before `change` if the rate rises, because it would otherwise drop packets that
    /// keep to the limit.
    fn with_backstop(
        &self,
        (direction, held, limit): (Direction, &InstalledQdiscs, &Limit),
        undo: &mut Undo<'a>,
        change: impl FnOnce(&mut Undo<'a>) -> Result<(), tc::Error>,
    ) -> anyhow::Result<()> {
        if direction == Direction::Ingress {
            return Ok(change(undo)?);
        }
        let backstop = self.backstop(limit)?;
        let rises = held.rate().is_some_and(|it| it < limit.rate.bytes());
        if rises {
            self.put_backstop(&backstop, undo)?;
        }
        self.located(direction, change(undo))?;
        if !rises {
            self.put_backstop(&backstop, undo)?;
        }
        Ok(())
    }

    /// Checks that RELOAD can change the limit of a direction to `asked`. `None` stands for the
    /// removal of the limit. Accepts a sandbox without a limit.
    ///
    /// # Errors
    /// - Code 7: the limit is to be removed, but the Go plugin set it.
    /// - Code 100: another program set a root qdisc on the link, or the kernel refuses a request.
    pub fn expect_changeable(
        &self,
        direction: Direction,
        asked: Option<&Asked>,
    ) -> anyhow::Result<()> {
        let place = self.pair.place(direction);
        let held = self.located(direction, place.held())?;
        let ifb = match direction {
            Direction::Ingress => None,
            Direction::Egress => self.find_ifb()?,
        };
        if asked.is_some() || ifb.is_none() && (held.is_own() || !held.is_limited()) {
            return Ok(());
        }
        let link = ifb.as_ref().unwrap_or(place.link).name.as_str();
        let reason = format!(
            "{link} has a limit that this plugin did not set; only DEL by the plugin that set it removes it"
        );
        Err(Error::invalid(CHANGE_LIMITS, reason).into())
    }

    /// Removes the limit of a direction. Of egress, the record is first: by it, the agent knows that
    /// the backstop is not lost. The backstop is before the qdisc: if it outlived the qdisc, it
    /// would drop packets of a sandbox without a limit.
    ///
    /// # Errors
    /// A file cannot be written, or the kernel refuses a request.
    pub fn remove(&self, direction: Direction) -> anyhow::Result<()> {
        cni::step("remove a limit");
        if direction == Direction::Egress {
            let owner = self.request.attachment.owner();
            let record = Record {
                limits_egress: false,
                ..record::read(&owner)?
            };
            record::write(&owner, &record)?;
            backstop::remove(&owner)?;
        }
        self.located(direction, self.pair.place(direction).remove())
    }

    /// Deletes the ifb of the Go plugin after this plugin has limited what the sandbox sends.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn delete_ifb(&self) -> anyhow::Result<()> {
        let Some(ifb) = self.find_ifb()? else {
            return Ok(());
        };
        cni::step("delete the ifb");
        tc::stop_redirecting(&self.pair.host, &self.pair.host_link, &ifb)?;
        Ok(self.pair.host.remove_link(&ifb)?)
    }

    /// Adds or updates `backstop`, the second limit in `nf_tables`.
    ///
    /// # Errors
    /// As [`Backstop::put`].
    pub fn put_backstop(&self, backstop: &Backstop, undo: &mut Undo<'a>) -> anyhow::Result<()> {
        cni::step("limit what evades the qdisc");
        let owner = self.request.attachment.owner();
        backstop.put(|| {
            undo.push("remove the backstop", move || backstop::remove(&owner));
        })
    }
}

/// The configuration key that lists the directions whose limits RELOAD, a verb of this suite,
/// changes.
pub(crate) const CHANGE_LIMITS: &str = "runtimeConfig.changeLimits";
