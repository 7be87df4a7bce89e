// Modules of host-local, for targets that include this file.

#[path = "../../../crates/host-local/src/add.rs"]
mod add;
#[path = "../../../crates/host-local/src/allocate.rs"]
mod allocate;
#[path = "../../../crates/host-local/src/blocks.rs"]
mod blocks;
#[path = "../../../crates/host-local/src/check.rs"]
mod check;
#[path = "../../../crates/host-local/src/config.rs"]
mod config;
#[path = "../../../crates/host-local/src/del.rs"]
mod del;
#[path = "../../../crates/host-local/src/directory.rs"]
mod directory;
#[path = "../../../crates/host-local/src/gc.rs"]
mod gc;
#[path = "../../../crates/host-local/src/index.rs"]
mod index;
#[path = "../../../crates/host-local/src/lease.rs"]
mod lease;
#[path = "../../../crates/host-local/src/lock.rs"]
mod lock;
#[path = "../../../crates/host-local/src/pod_cidr.rs"]
mod pod_cidr;
#[path = "../../../crates/host-local/src/range.rs"]
mod range;
#[path = "../../../crates/host-local/src/raw.rs"]
mod raw;
#[path = "../../../crates/host-local/src/read.rs"]
mod read;
#[path = "../../../crates/host-local/src/rebuild.rs"]
mod rebuild;
#[path = "../../../crates/host-local/src/request.rs"]
mod request;
#[path = "../../../crates/host-local/src/resolv_conf.rs"]
mod resolv_conf;
#[path = "../../../crates/host-local/src/rest.rs"]
mod rest;
#[path = "../../../crates/host-local/src/scratch.rs"]
mod scratch;
#[path = "../../../crates/host-local/src/status.rs"]
mod status;
#[path = "../../../crates/host-local/src/storage.rs"]
mod storage;
#[path = "../../../crates/host-local/src/store.rs"]
mod store;
#[path = "../../../crates/host-local/src/vacancy.rs"]
mod vacancy;
