//! The folder that the preloaded library shows in the place of the machine's RDMA devices.
//!
//! ```text
//! /dev/shm/urxe-XXXXXX      mode 0711: other users can neither list it nor write to it
//! ├── lock                  mode 0600, locked by the reaper
//! └── 0123456789abcdef      URXE_RUN: the name is random, and known only to processes that `urxe run` has started
//!     ├── users.lock        locked by each of these processes
//!     ├── counted           the final counters of devices; only the user of `urxe run` writes there
//!     ├── dev, sys          what the library shows
//!     ├── valgrind.supp     suppressions that VALGRIND_OPTS names
//!     └── liburxe.so        if its own path does not fit in LD_PRELOAD
//! ```
//!
//! Processes of other users may be part of the run, so they may read all of it. Other users of the machine do not know the
//! name, and so can neither hold the lock nor have the folder in their environment, which would keep it from being removed.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use tempfile::TempDir;
use urxe_net::Interface;
use urxe_options::Choices;
use urxe_wire::Lid;

use crate::device_node;
use crate::layout::{DEV_DIR, RDMA_CM};
use crate::plan::Plan;
use crate::sysfs::{self, Netdev, Slot};
use crate::topology::Topology;
use crate::valgrind;

/// Prefix of the folders' names.
pub(super) const PREFIX: &str = "urxe-";

/// A file in each, locked for as long as somebody is there to remove the folder.
pub(super) const LOCK: &str = "lock";

/// The library in the folder, for when its own path cannot be written in `LD_PRELOAD`.
const LIBRARY: &str = "liburxe.so";

pub(super) struct Folder {
    dir: TempDir,
    /// The folder in it that the library shows.
    shown: PathBuf,
    lock: File,
}

impl Folder {
    /// Makes the folder of a run in the first place that has room.
    pub(super) fn create(
        choices: &Choices,
        interfaces: &[Interface],
        topology: Option<&Topology>,
        library: &Path,
    ) -> Result<Self> {
        let mut errors = Vec::new();
        for place in places() {
            match Self::create_in(&place, choices, interfaces, topology, library) {
                Ok(folder) => return Ok(folder),
                Err(error) => errors.push(format!("{}: {error:#}", place.display())),
            }
        }
        bail!("no temporary folder ({}): make room there, or set TMPDIR", errors.join("; "))
    }

    fn create_in(
        place: &Path,
        choices: &Choices,
        interfaces: &[Interface],
        topology: Option<&Topology>,
        library: &Path,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        // Whatever the umask of the program is to be: processes of other users may read, and never write.
        let _umask = Umask::set(0o022);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
        // Nobody sees it unlocked.
        let unlocked = dir.path().join("unlocked");
        let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unlocked)?;
        ensure!(try_lock(&lock), "cannot lock {}: {}", unlocked.display(), Error::last_os_error());
        fs::rename(&unlocked, dir.path().join(LOCK))?;
        let shown = dir.path().join(format!("{:016x}", random()));
        fs::create_dir(&shown)?;
        File::create_new(shown.join(urxe_options::RUN_USERS_LOCK))?;

        let mut plan = Plan::default();
        let slots: Vec<Slot<'_>> = choices
            .devices
            .iter()
            .zip(interfaces)
            .map(|(device, interface)| {
                let lid = if choices.lids { interface.lid() } else { Lid::NONE };
                Slot { name: device.name.clone(), netdev: Some(Netdev::from(interface).with_lid(lid)) }
            })
            .collect();
        sysfs::add_kernel_tree(&mut plan, &shown.join("sys"), &slots, choices.personality, topology);
        let dev = shown.join(DEV_DIR.trim_start_matches('/'));
        // Only root can make nodes, and only root could change `/dev/null` through a descriptor of a link to it.
        let nodes = device_node::can_be_made(&shown);
        let of_device = |index| ["uverbs", "umad", "issm"].map(|kind| format!("{kind}{index}"));
        let names = (0..slots.len()).flat_map(of_device).chain([RDMA_CM.to_owned()]);
        for path in names.map(|name| dev.join(name)) {
            if nodes { plan.null_device(path) } else { plan.link(path, "/dev/null") }
        }
        plan.link(shown.join(LIBRARY), library);
        plan.text(shown.join(valgrind::FILE), valgrind::SUPPRESSIONS);
        plan.write()?;
        fs::create_dir(shown.join(urxe_options::RUN_FINAL_COUNTERS))?;
        Ok(Self { dir, shown, lock })
    }

    /// The library's path as the loader can read it: it splits `LD_PRELOAD` at spaces and colons.
    pub(super) fn library(&self, library: &Path) -> PathBuf {
        let plain = library.to_str().is_some_and(|path| !path.contains([':', ' ']));
        if plain { library.to_path_buf() } else { self.shown.join(LIBRARY) }
    }

    /// Hands over the folder, which somebody else removes from now on, and its lock.
    pub(super) fn into_parts(self) -> (PathBuf, File) {
        (self.dir.keep(), self.lock)
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The folder in it that the library shows.
    pub(super) fn shown(&self) -> &Path {
        &self.shown
    }
}

/// The folder in `dir` that the library shows; `None` if there is none, or none any more.
pub(super) fn shown_in(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| path.join(urxe_options::RUN_USERS_LOCK).is_file())
}

/// 64 bits from the operating system, which seeds the hasher.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// Permissions that new files do not get, until this is dropped.
struct Umask(libc::mode_t);

impl Umask {
    fn set(mask: libc::mode_t) -> Self {
        // SAFETY: no pointers. This process has one thread.
        Self(unsafe { libc::umask(mask) })
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::umask(self.0) };
    }
}

/// Where a folder may be: in memory if possible, which is quick, and gone after a crash of the machine.
fn places() -> impl Iterator<Item = PathBuf> {
    let in_memory = [Some(PathBuf::from("/dev/shm")), std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)];
    in_memory.into_iter().flatten().chain([std::env::temp_dir()])
}

/// Locks a file for as long as a copy of this descriptor is open somewhere. False if somebody else has.
pub(super) fn try_lock(file: &File) -> bool {
    // SAFETY: a descriptor.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}
