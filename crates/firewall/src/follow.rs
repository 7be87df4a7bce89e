//! Calls a function after each reload and start of firewalld, because firewalld then has forgotten
//! the runtime sources of its zones.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use cni::note;
use futures_core::Stream as _;
use zbus::proxy::{MethodFlags, OwnerChangedStream, SignalStream};
use zbus::{Address, Proxy};
use zruntime::SharedRuntime;

use crate::firewalld::{NAME, PATH, PATIENCE, connect, in_time, unconnected};

/// Calls `restore` after each connection to the system bus, and after each reload and each start of
/// firewalld. Waits while the bus or firewalld does not run, so the function returns only with an
/// error.
///
/// # Errors
/// The address of the bus is invalid.
pub fn follow(mut restore: impl FnMut()) -> anyhow::Result<Infallible> {
    Address::system().map_err(|it| unconnected(&it))?;
    zbus::block_on(async {
        let mut is_waiting = false;
        loop {
            match in_time(PATIENCE, Events::subscribe()).await {
                Ok(mut events) => {
                    is_waiting = false;
                    loop {
                        events.loaded().await;
                        restore();
                        if !events.next().await {
                            break;
                        }
                    }
                }
                Err(error) if !is_waiting => {
                    note!("{error:#}; waiting for it");
                    is_waiting = true;
                }
                Err(_) => {}
            }
            SharedRuntime::current()?.sleep(PAUSE).await;
        }
    })
}

/// The signals of one connection to the bus. They report reloads of firewalld, and its starts and
/// ends, which change the owner of its bus name.
struct Events {
    firewalld: Proxy<'static>,
    reloads: SignalStream<'static>,
    owners: OwnerChangedStream<'static>,
}

impl Events {
    async fn subscribe() -> anyhow::Result<Self> {
        let bus = connect().await?;
        let firewalld = Proxy::new(&bus, NAME, PATH, NAME).await?;
        Ok(Self {
            reloads: firewalld.receive_signal("Reloaded").await?,
            owners: firewalld.receive_owner_changed().await?,
            firewalld,
        })
    }

    /// Waits until firewalld has loaded its rules. Before that, firewalld flushes tables of
    /// iptables, so rules that were restored too early would be lost. firewalld answers no call
    /// until it has loaded its rules. This function also returns if firewalld does not run, or if
    /// it does not answer in time.
    async fn loaded(&self) {
        let flags = MethodFlags::NO_AUTO_START;
        let asked = self.firewalld.call_with_flags("getDefaultZone", flags, &());
        let answer = in_time(PATIENCE, async { Ok::<Option<String>, _>(asked.await?) });
        drop(answer.await);
    }

    /// Waits until firewalld has reloaded or started. Returns `false` if the bus closed the
    /// connection.
    async fn next(&mut self) -> bool {
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(reload) = Pin::new(&mut self.reloads).poll_next(cx) {
                    return Poll::Ready(reload.is_some());
                }
                match ready!(Pin::new(&mut self.owners).poll_next(cx)) {
                    // firewalld has ended. The loop waits for its next start.
                    Some(None) => {}
                    owner => return Poll::Ready(owner.is_some()),
                }
            }
        })
        .await
    }
}

/// Time between two attempts to connect to the bus.
const PAUSE: Duration = Duration::from_secs(1);
