//! Arrays on disk with a slot for every address, in one file per 65,536 addresses.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::read;
use crate::scratch::{make_directory, open};

/// The files of one array, each named after its first address.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Directory of the files.
    pub directory: PathBuf,
    read: RefCell<HashMap<IpAddr, Vec<u8>>>,
}

impl Blocks {
    /// Opens the array in this directory, which may not exist yet.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            read: RefCell::default(),
        }
    }

    /// Passes the block that starts at `first` to `look`; an unwritten block is empty.
    pub fn look<T>(&self, first: IpAddr, look: impl FnOnce(&[u8]) -> T) -> T {
        let mut read = self.read.borrow_mut();
        let block = read.entry(first);
        look(block.or_insert_with(|| read::own(&self.file(first)).unwrap_or_default()))
    }

    /// Writes `bytes` at `offset` of the block that starts at `first`.
    pub fn write(&self, first: IpAddr, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.read.borrow_mut().remove(&first);
        make_directory(&self.directory)?;
        let file = open(&self.file(first))?;
        file.write_all_at(bytes, offset as u64)
    }

    /// Replaces the directory by an empty one.
    pub fn replace_all(&self) -> io::Result<()> {
        self.read.borrow_mut().clear();
        read::existing(fs::remove_dir_all(&self.directory))?;
        make_directory(&self.directory)
    }

    /// Removes the blocks whose last write was before `time`.
    pub fn remove_older(&self, time: SystemTime) -> io::Result<()> {
        self.read.borrow_mut().clear();
        let files = read::existing(fs::read_dir(&self.directory))?;
        for file in files.into_iter().flatten() {
            let file = file?;
            if file.metadata()?.modified()? < time {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    fn file(&self, first: IpAddr) -> PathBuf {
        self.directory.join(first.to_string())
    }
}

/// Returns the first address of the block with `address`, and the offset of `address` in it.
pub(crate) fn locate(address: IpAddr) -> (IpAddr, usize) {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            let offset = u16::from_be_bytes([c, d]);
            ([a, b, 0, 0].into(), offset.into())
        }
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            let [.., last] = &mut segments;
            let offset = std::mem::take(last);
            (segments.into(), offset.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn block_holds_the_addresses_that_differ_in_the_last_two_bytes() {
        for (address, first, offset) in [
            ("10.1.2.3", "10.1.0.0", 0x0203),
            ("10.1.255.255", "10.1.0.0", 0xffff),
            ("fd00:1::2:7", "fd00:1::2:0", 7),
        ] {
            let first: IpAddr = first.parse().unwrap();
            assert_eq!(locate(address.parse().unwrap()), (first, offset));
        }
    }

    #[test]
    fn written_bytes_are_read_and_others_are_zero_or_absent() {
        let directory = tempfile::tempdir().unwrap();
        let blocks = Blocks::new(directory.path().join("blocks"));
        let first = "10.1.0.0".parse().unwrap();
        assert!(blocks.look(first, <[u8]>::is_empty));
        blocks.write(first, 3, &[7, 8]).unwrap();
        assert_eq!(blocks.look(first, <[u8]>::to_vec), [0, 0, 0, 7, 8]);
        blocks.remove_older(SystemTime::UNIX_EPOCH).unwrap();
        assert!(!blocks.look(first, <[u8]>::is_empty));
        let later = SystemTime::now() + Duration::from_secs(1);
        blocks.remove_older(later).unwrap();
        assert!(blocks.look(first, <[u8]>::is_empty));
    }
}
