//! The daemon's socket: accepts clients, and answers their requests.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
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
use crate::lease::Lease;
use crate::record::Record;
use crate::wire::{HEARTBEAT, LARGEST, PATIENCE, Request};

/// Serves clients until SIGTERM or SIGINT. Leases stay, for the next daemon.
pub(crate) async fn serve(mut flags: Flags) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let passed = ListenFd::from_env().take_unix_listener(0);
    let passed = passed.context("read the socket that systemd passes")?;
    let is_own = passed.is_none();
    if let Some(path) = passed.as_ref().and_then(path) {
        flags.socket = flags.on_host(&path);
    }
    let _lock = lock(&flags.records())?;
    let listener = listener(passed, &flags.socket)?;
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

/// Returns the path of a socket, at which clients find the records, too.
fn path(listener: &net::UnixListener) -> Option<PathBuf> {
    let address = listener.local_addr().ok()?;
    address.as_pathname().map(Path::to_owned)
}

/// Returns the socket that systemd passes, or else a new one at `path`.
fn listener(passed: Option<net::UnixListener>, path: &Path) -> anyhow::Result<UnixListener> {
    let listener = passed.map_or_else(|| bind(path), Ok);
    let listener = listener.with_context(|| format!("listen on {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(UnixListener::from_std(listener)?)
}

/// Creates the socket. Replaces one that a killed daemon left.
fn bind(path: &Path) -> anyhow::Result<net::UnixListener> {
    let is_free = net::UnixStream::connect(path).is_err();
    ensure!(is_free, "another program listens there; stop it first");
    files::remove(path)?;
    let listener = net::UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Starts the task of each record. Releases what an ADD did not return, and what a DEL marked while
/// no daemon ran.
async fn load(held: &HeldLeases) -> anyhow::Result<()> {
    let files = held.flags.records();
    for owner in files.owners()? {
        match files
            .find(&owner)
            .map(|it| serde_json::from_str::<Record>(&it))
        {
            Ok(Ok(record)) if record.is_answered => drop(held.start(record)),
            Ok(Err(error)) => note!("record of {owner}: {error}; DEL removes it"),
            Ok(Ok(_)) | Err(_) => cni::note_failure(held.release(&owner).await),
        }
    }
    Ok(())
}

/// Starts the task of each cached attachment without a record whose interface has its address. Its
/// lease is another daemon's, such as that of the Go plugin, so the task first has it confirmed.
async fn take_over(held: &HeldLeases) -> anyhow::Result<()> {
    let files = held.flags.records();
    let known = files.owners()?;
    for (mut record, address) in takeover::cached(&held.flags) {
        let owner = record.asked.attachment.owner();
        if known.contains(&owner) {
            continue;
        }
        let has_address = move |connection: &Connection, link: &Link| {
            let mut addresses = connection.addresses(link.index)?.into_iter();
            Ok(addresses.any(|it| it.address == address.into()))
        };
        match at_interface(&mut record, has_address).await {
            Ok(true) => {
                note!("{owner}: asking for {address}, which another daemon leased");
                record.write(&files)?;
                held.start(record);
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
                tokio::spawn(async move { drop(serve_client(stream, held).await) });
            }
            Err(error) => {
                note!("accept a client: {error}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Answers one request. Sends an empty line from time to time meanwhile, and ends if the client has hung up.
async fn serve_client(stream: UnixStream, held: Arc<HeldLeases>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(LARGEST));
    timeout(PATIENCE, reader.read_line(&mut line)).await??;
    if line.starts_with("CONNECT ") {
        return writer.write_all(TO_GO.as_bytes()).await;
    }
    let mut answer = std::pin::pin!(answer(held, &line));
    let answer = loop {
        match timeout(HEARTBEAT, &mut answer).await {
            Ok(answer) => break answer.map_err(|error| format!("{error:#}")),
            Err(_) => writer.write_all(b"\n").await?,
        }
    };
    writer.write_all(&serde_json::to_vec(&answer)?).await
}

async fn answer(held: Arc<HeldLeases>, line: &str) -> anyhow::Result<Option<Lease>> {
    match serde_json::from_str(line).context("read the request")? {
        Request::Add(asked) => held.add(held.flags.here(asked)).await,
        Request::Check(asked, known) => held.check(held.flags.here(asked), known).await,
        Request::Del(owner) => {
            // It completes also if the client hangs up.
            let released = tokio::spawn(async move { held.release(&owner).await });
            released.await?.map(|()| None)
        }
        Request::Status => Ok(None),
    }
}

/// Answer to the Go plugin, which shows the text of such a status.
const TO_GO: &str = "HTTP/1.0 501 the plugin dhcp of containernetworking/plugins cannot talk to this \
                     daemon: use ours\r\n\r\n";
