//! Two releases on one node: the former one, and the one under test.

use std::fs;
use std::path::PathBuf;

use crate::host::under_test;

/// Returns the former and the present release, each as the directory of its executables.
///
/// `scripts/test-upgrade.sh` builds the former release and passes its directory as
/// `FORMER_RELEASE`. Without this variable, the release under test is its own former release: the
/// tests then show that they pass where both releases are the same.
pub fn releases() -> [PathBuf; 2] {
    let present = under_test("host-local").parent().unwrap().to_owned();
    let former = std::env::var_os("FORMER_RELEASE");
    let former = former.map_or_else(|| present.clone(), |it| fs::canonicalize(it).unwrap());
    [former, present]
}

/// Returns the present release after the former one, as during an upgrade.
pub fn upgrade() -> [PathBuf; 2] {
    releases()
}

/// Returns the former release after the present one, as during a downgrade.
pub fn downgrade() -> [PathBuf; 2] {
    let [former, present] = releases();
    [present, former]
}
