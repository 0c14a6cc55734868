//! The folder that the preloaded library shows in the place of the machine's RDMA devices.

use std::fs::{self, File};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use urxe_net::Interface;
use urxe_options::Choices;

use crate::layout::{DEV_DIR, RDMA_CM};
use crate::plan::Plan;
use crate::sysfs::{self, Netdev, Slot};

/// What the folders' names begin with.
pub(super) const PREFIX: &str = "urxe-";

/// A file in each, locked for as long as somebody is there to remove the folder.
pub(super) const LOCK: &str = "lock";

/// The library in the folder, for when its own path cannot be written in `LD_PRELOAD`.
const LIBRARY: &str = "liburxe.so";

pub(super) struct Folder {
    dir: TempDir,
    lock: File,
}

impl Folder {
    pub(super) fn create(choices: &Choices, interfaces: &[Interface], library: &Path) -> Result<Self> {
        let dir = temporary()?;
        // Children may be other users.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        // Nobody sees it unlocked.
        let unlocked = dir.path().join("unlocked");
        let lock = File::create(&unlocked)?;
        ensure!(try_lock(&lock), "cannot lock {}: {}", unlocked.display(), Error::last_os_error());
        fs::rename(&unlocked, dir.path().join(LOCK))?;

        let mut plan = Plan::default();
        let slots: Vec<Slot<'_>> = choices
            .devices
            .iter()
            .zip(interfaces)
            .map(|(device, interface)| {
                let lid = if choices.lids { interface.lid() } else { 0 };
                Slot { name: device.name.clone(), netdev: Some(Netdev::from(interface).with_lid(lid)) }
            })
            .collect();
        sysfs::add_kernel_tree(&mut plan, &dir.path().join("sys"), &slots, choices.personality);
        let dev = dir.path().join(DEV_DIR.trim_start_matches('/'));
        for (index, _) in slots.iter().enumerate() {
            plan.link(dev.join(format!("uverbs{index}")), "/dev/null");
        }
        plan.link(dev.join(RDMA_CM), "/dev/null");
        plan.link(dir.path().join(LIBRARY), library);
        plan.write()?;
        // Whoever of the run has a device adds to it.
        let ledger = dir.path().join(urxe_options::RUN_LEDGER);
        fs::create_dir(&ledger)?;
        fs::set_permissions(&ledger, fs::Permissions::from_mode(0o1777))?;
        Ok(Self { dir, lock })
    }

    /// The library's path as the loader can read it: it splits `LD_PRELOAD` at spaces and colons.
    pub(super) fn library(&self, library: &Path) -> PathBuf {
        let plain = library.to_str().is_some_and(|path| !path.contains([':', ' ']));
        if plain { library.to_path_buf() } else { self.dir.path().join(LIBRARY) }
    }

    /// Hands over the folder, which somebody else removes from now on, and its lock.
    pub(super) fn into_parts(self) -> (PathBuf, File) {
        (self.dir.keep(), self.lock)
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// A folder in memory if possible, which is quick, and gone after a crash of the machine.
fn temporary() -> Result<TempDir> {
    let in_memory = [Some(PathBuf::from("/dev/shm")), std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)];
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX);
    for base in in_memory.into_iter().flatten() {
        if let Ok(dir) = builder.tempdir_in(base) {
            return Ok(dir);
        }
    }
    builder.tempdir().with_context(|| {
        format!("no temporary folder, neither in /dev/shm nor in {}: set TMPDIR", std::env::temp_dir().display())
    })
}

/// Locks a file for as long as a copy of this descriptor is open somewhere. False if somebody else has.
pub(super) fn try_lock(file: &File) -> bool {
    // SAFETY: a descriptor.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}
