//! The daemon's socket: accepts clients, and answers their requests.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use attach::OwnerFiles;
use cni::files::{self, Hold};
use cni::note;
use listenfd::ListenFd;
use netlink::{Connection, Link};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::flags::Flags;
use super::held_leases::HeldLeases;
use super::sandbox::at_interface;
use super::takeover;
use crate::record::Record;
use crate::wire::{Answer, HEARTBEAT, LARGEST, PATIENCE, Request};

/// Serves clients until SIGTERM or SIGINT. Leases stay, for the next daemon.
pub(crate) async fn serve(flags: Flags) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _lock = lock(&flags.records())?;
    let (listener, is_own) = listener(&flags.socket)?;
    if let Some(path) = &flags.pidfile {
        let id = std::process::id().to_string();
        fs::write(path, id).with_context(|| format!("write {}", path.display()))?;
    }
    let held = Arc::new(HeldLeases::new(flags));
    // Clients that find no daemon mark records. So the socket exists before the records are read.
    load(&held).await?;
    take_over(&held).await?;
    note!("listening on {}", held.flags.socket.display());
    tokio::select! {
        () = accept(&listener, &held) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    if is_own {
        files::remove(&held.flags.socket)?;
    }
    held.flags.pidfile.as_deref().map_or(Ok(()), files::remove)
}

/// Locks the directory of records, because two daemons must not keep the same leases.
fn lock(files: &OwnerFiles) -> anyhow::Result<File> {
    let OwnerFiles(path) = files;
    let open = |path: &Path| files::make_directory(path, 0o700).and_then(|()| File::open(path));
    let locked = files::lock(path, open, Hold::Exclusive, Duration::ZERO);
    let locked = locked.with_context(|| format!("lock {}", path.display()))?;
    locked.with_context(|| format!("another DHCP daemon uses {}", path.display()))
}

/// Returns the socket that systemd passes, or else a new one at `path`, and whether it is new.
fn listener(path: &Path) -> anyhow::Result<(UnixListener, bool)> {
    let mut passed = ListenFd::from_env();
    ensure!(
        passed.len() < 2,
        "systemd passes {} sockets: the daemon needs one",
        passed.len()
    );
    let passed = passed
        .take_unix_listener(0)
        .context("read the socket that systemd passes")?;
    let is_new = passed.is_none();
    let listener = match passed {
        Some(listener) => listener,
        None => bind(path).with_context(|| format!("listen on {}", path.display()))?,
    };
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener)?, is_new))
}

/// Creates the socket. Replaces one that a killed daemon left.
fn bind(path: &Path) -> anyhow::Result<net::UnixListener> {
    if net::UnixStream::connect(path).is_ok() {
        bail!("another program listens there; stop it first");
    }
    files::remove(path)?;
    let listener = net::UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Starts the task of each record. Releases what an ADD did not return, and what a DEL marked while
/// no daemon ran.
async fn load(held: &Arc<HeldLeases>) -> anyhow::Result<()> {
    let files = held.flags.records();
    for owner in files.owners()? {
        let retired = || Some((files.find_retired(&owner)?, false));
        let live = files.find(&owner).ok().map(|text| (text, true));
        let Some((text, is_live)) = live.or_else(retired) else {
            continue;
        };
        match serde_json::from_str::<Record>(&text) {
            Ok(record) if is_live && record.is_answered => held.start(record, None),
            Ok(record) => cni::note_failure(held.release_record(record).await),
            Err(error) => note!("record of {owner}: {error}; DEL removes it"),
        }
    }
    Ok(())
}

/// Starts the task of each cached attachment without a record whose interface has its address. Its
/// lease is another daemon's, such as that of the Go plugin, so the task first has it confirmed.
async fn take_over(held: &Arc<HeldLeases>) -> anyhow::Result<()> {
    let files = held.flags.records();
    for mut record in takeover::cached(&held.flags) {
        let owner = record.asked.attachment.owner();
        let Some(address) = record.lease.as_ref().map(|it| it.address) else {
            continue;
        };
        if files.owners()?.contains(&owner) {
            continue;
        }
        let has_address = move |connection: &Connection, link: &Link| {
            let mut addresses = connection.addresses(link.index)?.into_iter();
            Ok(addresses.any(|it| it.address == address.into()))
        };
        match at_interface(&mut record, &held.flags.prefix, has_address).await {
            Ok(true) => {
                note!("{owner}: asking for {address}, which another daemon leased");
                record.write(&files)?;
                held.start(record, None);
            }
            Ok(false) => {}
            Err(error) => note!("{owner}: look for {address}: {error:#}"),
        }
    }
    Ok(())
}

async fn accept(listener: &UnixListener, held: &Arc<HeldLeases>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let held = Arc::clone(held);
                tokio::spawn(async move { drop(serve_client(stream, &held).await) });
            }
            Err(error) => {
                note!("accept a client: {error}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Answers one request. Sends an empty line from time to time meanwhile. If the client hangs up,
/// drops the work for it.
async fn serve_client(stream: UnixStream, held: &Arc<HeldLeases>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(LARGEST));
    let mut line = String::new();
    timeout(PATIENCE, reader.read_line(&mut line)).await??;
    let mut more = [0];
    let answer = async { answer(held, parse(&line)?).await };
    tokio::pin!(answer);
    let answer = loop {
        tokio::select! {
            // The Go plugin's request has a second line, which is no hang-up.
            biased;
            answer = &mut answer => break answer,
            _ = reader.read(&mut more) => return Ok(()),
            () = sleep(HEARTBEAT) => writer.write_all(b"\n").await?,
        }
    };
    let answer = answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}")));
    let line = match answer {
        // The Go plugin shows the text of such a status.
        Answer::Failed(reason) if line.starts_with(GO) => format!("HTTP/1.0 501 {reason}\r\n\r\n"),
        answer => serde_json::to_string(&answer)?,
    };
    writer.write_all(line.as_bytes()).await
}

/// Parses a request.
///
/// # Errors
/// It is no request. The error also shows a user of the Go plugin what is wrong.
pub(crate) fn parse(line: &str) -> anyhow::Result<Request> {
    if line.starts_with(GO) {
        bail!(
            "the plugin dhcp of containernetworking/plugins cannot talk to this daemon: use ours"
        );
    }
    serde_json::from_str(line).context("read the request")
}

async fn answer(held: &Arc<HeldLeases>, request: Request) -> anyhow::Result<Answer> {
    match request {
        Request::Add(asked) => held.add(Record::new(asked)).await.map(Answer::Lease),
        Request::Check(asked, lease) => {
            let record = Record {
                lease,
                is_answered: true,
                ..Record::new(asked)
            };
            held.check(record).await.map(Answer::Lease)
        }
        Request::Del(attachment) => held.release(&attachment).await.map(|()| Answer::Done),
        Request::Status => Ok(Answer::Done),
        Request::Gc(network, valid) => held.collect(&network, &valid).await.map(|()| Answer::Done),
    }
}

/// Start of a request of the Go plugin.
const GO: &str = "CONNECT ";
