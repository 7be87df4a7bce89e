//! A Kubernetes API server with nodes alone: list in pages, watch, bookmarks, and ways to fail.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::{Value, json};

use crate::strategic;

/// An API server that serves until this is dropped.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// How the server answers from now on. A change ends all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Answers {
    /// As an API server.
    #[default]
    Well,
    /// With this HTTP status.
    Status(u16),
    /// With a text that is no JSON.
    Garbage,
    /// With a list without nodes.
    Emptiness,
    /// Never.
    Never,
    /// It does not accept connections.
    Away,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    answers: Answers,
    nodes: BTreeMap<String, Value>,
    /// All events; the resource version after an event is its place, counted from 1.
    events: Vec<Value>,
    /// Watches from an older resource version than this get 410.
    oldest: usize,
    connections: Vec<TcpStream>,
    lists: usize,
    /// The HTTP status of all patches; 0 if they are applied.
    refusal: u16,
    /// Number of images in the status of nodes that are set from now on.
    images: usize,
}

impl ApiServer {
    /// Starts a server without nodes at an address of the calling thread's network.
    pub fn start(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), Arc::clone(&served));
                let mut state = shared.lock();
                if state.answers == Answers::Away {
                    continue;
                }
                state.connections.push(stream.try_clone().unwrap());
                drop(state);
                // The client may close the connection at any time.
                thread::spawn(move || shared.serve(stream).ok());
            }
        });
        Self { address, shared }
    }

    /// Writes a kubeconfig of this server into `directory`, and returns its path.
    pub fn kubeconfig(&self, directory: &Path) -> PathBuf {
        let path = directory.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Changes how it answers, and ends all connections.
    pub fn answers(&self, answers: Answers) {
        let mut state = self.shared.lock();
        state.answers = answers;
        for stream in state.connections.drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
        self.shared.changed.notify_all();
    }

    /// Sets the conditions of a node's status.
    pub fn set_conditions(&self, name: &str, conditions: &Value) {
        self.replace(name, ["status", "conditions"], conditions.clone());
    }

    /// Gives nodes that are set from now on as many images as a real node has: with 60 images, a Node
    /// has some 12 KB.
    pub fn set_images(&self, count: usize) {
        self.shared.lock().images = count;
    }

    /// Gives a node this annotation alone, or none.
    pub fn annotate(&self, name: &str, key: &str, value: Option<&str>) {
        let annotations = value.map_or(json!({}), |it| json!({key: it}));
        self.replace(name, ["metadata", "annotations"], annotations);
    }

    fn replace(&self, name: &str, [part, key]: [&str; 2], value: Value) {
        let mut state = self.shared.lock();
        let mut object = state.nodes[name].clone();
        object[part][key] = value;
        state.change(name, object);
        self.shared.changed.notify_all();
    }

    /// Adds or changes a node. Its conditions and annotations stay.
    pub fn set(&self, name: &str, pod_cidrs: &[&str], addresses: &[&str]) {
        let addresses = addresses
            .iter()
            .map(|it| json!({"type": "InternalIP", "address": it}))
            .chain([json!({"type": "Hostname", "address": name})]);
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": name, "managedFields": [{"manager": "kubelet"}]},
            "spec": {"podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs},
            "status": {"addresses": addresses.collect::<Value>()},
        });
        let mut state = self.shared.lock();
        let image = |number| {
            let tagged = format!("registry.example/team/image-{number}:v1.2.3");
            let digest = format!("registry.example/team/image-{number}@sha256:{number:064x}");
            json!({"names": [digest, tagged], "sizeBytes": 12_345_678})
        };
        object["status"]["images"] = (0..=state.images).map(image).collect();
        let before = state.nodes.get(name);
        for [part, key] in [["status", "conditions"], ["metadata", "annotations"]] {
            if let Some(kept) = before.and_then(|it| it[part].get(key)) {
                object[part][key] = kept.clone();
            }
        }
        state.change(name, object);
        self.shared.changed.notify_all();
    }

    /// Deletes a node.
    pub fn delete(&self, name: &str) {
        let mut state = self.shared.lock();
        let object = state.nodes.remove(name).unwrap();
        state.event("DELETED", object);
        self.shared.changed.notify_all();
    }

    /// Sends a bookmark: an event that only has a resource version.
    pub fn bookmark(&self) {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {}});
        self.shared.lock().event("BOOKMARK", object);
        self.shared.changed.notify_all();
    }

    /// Forgets all events, so that a watch has to list again, and ends all connections.
    pub fn compact(&self) {
        let mut state = self.shared.lock();
        state.event("BOOKMARK", json!({"metadata": {}}));
        state.oldest = state.events.len();
        drop(state);
        self.answers(Answers::Well);
    }

    /// Refuses patches with this HTTP status from now on, as if the service account lacked a right.
    pub fn refuse_patches(&self, status: u16) {
        self.shared.lock().refusal = status;
    }

    /// Returns a node's object.
    pub fn object(&self, name: &str) -> Value {
        self.shared.lock().nodes[name].clone()
    }

    /// Returns how many lists were begun.
    pub fn lists(&self) -> usize {
        self.shared.lock().lists
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.answers(Answers::Away);
    }
}

impl State {
    /// Adds an event, and returns its object with the new resource version.
    fn event(&mut self, kind: &str, mut object: Value) -> Value {
        let version = (self.events.len() + 1).to_string();
        object["metadata"]["resourceVersion"] = version.into();
        self.events.push(json!({"type": kind, "object": object}));
        object
    }

    /// Applies a strategic merge patch of a node's conditions and annotations. Returns status and body of the answer.
    fn patch(&mut self, request: &Request) -> (u16, String) {
        if self.refusal != 0 {
            let status = json!({"kind": "Status", "code": self.refusal, "message": "forbidden"});
            return (self.refusal, status.to_string());
        }
        let [name, "status"] = request.node()[..] else {
            panic!("{request:?}");
        };
        let patch: Value = serde_json::from_slice(&request.body).unwrap();
        let mut object = self.nodes[name].clone();
        strategic::merge(&mut object, &patch);
        self.change(name, object);
        (200, self.nodes[name].to_string())
    }

    /// Adds or replaces a node.
    fn change(&mut self, name: &str, object: Value) {
        let kind = if self.nodes.contains_key(name) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        let object = self.event(kind, object);
        self.nodes.insert(name.to_owned(), object);
    }

    /// Returns a page of the list.
    fn page(&mut self, query: &str) -> Value {
        let limit = value(query, "limit").map_or(usize::MAX, |it| it.parse().unwrap());
        let from = value(query, "continue").unwrap_or_default();
        self.lists += usize::from(from.is_empty());
        let rest = self.nodes.range(from.to_owned()..);
        let mut rest = rest.filter(|_| self.answers != Answers::Emptiness);
        let items: Vec<_> = rest.by_ref().take(limit).map(|it| it.1).collect();
        let next = rest.next().map_or("", |it| it.0);
        let metadata = json!({"resourceVersion": self.events.len().to_string(), "continue": next});
        json!({"apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": items})
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Answers the requests of a connection, until one of them ends it.
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some(request) = Request::read(&mut reader)? {
            let query = request.query();
            let mut state = self.lock();
            let (status, body) = match state.answers {
                Answers::Status(status) => {
                    let body = json!({"kind": "Status", "code": status, "message": "no"});
                    (status, body.to_string())
                }
                Answers::Garbage => (200, "<html>".to_owned()),
                Answers::Never => {
                    drop(
                        self.changed
                            .wait_while(state, |it| it.answers == Answers::Never),
                    );
                    return Ok(());
                }
                Answers::Away => return Ok(()),
                _ if request.method == "PATCH" => state.patch(&request),
                Answers::Well | Answers::Emptiness if value(query, "watch").is_some() => {
                    drop(state);
                    return self.watch(&mut stream, query);
                }
                Answers::Well | Answers::Emptiness => (200, state.page(query).to_string()),
            };
            drop(state);
            self.changed.notify_all();
            answer(&mut stream, status, &body)?;
        }
        Ok(())
    }

    /// Sends events until the client's time limit, or until the connection ends.
    fn watch(&self, stream: &mut TcpStream, query: &str) -> io::Result<()> {
        let header = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                      Transfer-Encoding: chunked\r\n\r\n";
        stream.write_all(header.as_bytes())?;
        let number = |key| value(query, key).and_then(|it| it.parse().ok());
        let mut sent = number("resourceVersion").unwrap_or_default();
        let limit = number("timeoutSeconds").unwrap();
        let end = Instant::now() + Duration::from_secs(limit as u64);
        if sent < self.lock().oldest {
            let status = json!({
                "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410,
                "message": "too old resource version",
            });
            return chunk(stream, &json!({"type": "ERROR", "object": status}));
        }
        loop {
            let state = self.lock();
            let is_same = |it: &mut State| it.events.len() <= sent && it.answers == Answers::Well;
            let second = Duration::from_secs(1);
            let waited = self.changed.wait_timeout_while(state, second, is_same);
            let state = waited.unwrap().0;
            let is_over = Instant::now() > end;
            if is_over || !matches!(state.answers, Answers::Well | Answers::Emptiness) {
                return stream.write_all(b"0\r\n\r\n");
            }
            let new = state.events[sent..].to_vec();
            sent += new.len();
            drop(state);
            new.iter().try_for_each(|it| chunk(stream, it))?;
        }
    }
}

/// A request of a client.
#[derive(Debug)]
struct Request {
    method: String,
    target: String,
    body: Vec<u8>,
}

impl Request {
    /// Reads a request; `None` at the end of the connection.
    fn read(reader: &mut impl io::BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split(' ').map(str::to_owned);
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Ok(None);
        };
        let (mut header, mut length) = (line, 0);
        while header.trim() != "" {
            header.clear();
            reader.read_line(&mut header)?;
            let value = header.to_lowercase();
            let value = value.strip_prefix("content-length:");
            length = value.map_or(length, |it| it.trim().parse().unwrap());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        Ok(Some(Self {
            method,
            target,
            body,
        }))
    }

    /// Returns the part of the target behind `?`.
    fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |it| it.1)
    }

    /// Returns the parts of the path behind `/api/v1/nodes/`.
    fn node(&self) -> Vec<&str> {
        let path = self.target.split('?').next().unwrap();
        path.split('/').skip(4).collect()
    }
}

/// Returns the value of a key in a query.
fn value<'q>(query: &'q str, key: &str) -> Option<&'q str> {
    let mut pairs = query.split('&').filter_map(|it| it.split_once('='));
    pairs.find(|it| it.0 == key).map(|it| it.1)
}

fn answer(stream: &mut TcpStream, status: u16, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends an event in one piece, its type first, as an API server does.
fn chunk(stream: &mut TcpStream, event: &Value) -> io::Result<()> {
    let (kind, object) = (&event["type"], &event["object"]);
    let line = format!("{{\"type\":{kind},\"object\":{object}}}\n");
    stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
}
