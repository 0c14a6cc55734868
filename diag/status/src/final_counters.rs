//! Counters of closed devices, kept for as long as `urxe run` lasts.
//!
//! A card's counters outlive a process: an administrator who reads them before and after a program sees the program's
//! traffic. So a device that closes adds its counters to a file in the folder of `urxe run`, one for each device and
//! network namespace. A program that is killed does not. Without `urxe run` there is no such folder, and no file.
//!
//! The file holds a number that stands for the names of the counters, and their values, each of eight bytes in the order
//! of the machine.
//!
//! A process locks another file before it changes this one: a file that other users can read, they could lock, too.
//!
//! Only the user of `urxe run` may write there: a folder that several users write to is one in which each can lay out
//! links and pipes for the others. So what a process of another user has counted (one that a service started as root has
//! become, say) is lost with it. Nothing about the folder is taken on trust: `URXE_RUN` is a variable, and root may be
//! below somebody else's `urxe run`.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, openat};
use urxe_net::ipc::credentials::file_may_have;

use crate::names;

/// How often to ask for a file that somebody else has, with a millisecond in between.
const ATTEMPTS: usize = 500;

/// Name of the lock.
const LOCK: &str = "lock";

/// Permission to write for the group or for everybody.
const SHARED: u32 = 0o022;

/// Files of counters of closed devices in a folder, and the user that they belong to.
#[derive(Debug)]
pub struct FinalCounters {
    folder: File,
    owner: u32,
}

impl FinalCounters {
    /// Opens the folder, if it is the user `owner`'s and nobody else may write there.
    pub fn open(folder: &Path, owner: u32) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = File::from(open(folder, flags, Mode::empty())?);
        let metadata = folder.metadata()?;
        if metadata.uid() != owner || metadata.mode() & SHARED != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Self { folder, owner })
    }

    /// Opens the file `name`, or makes it with this mode: a regular file of the owner's with one name. A pipe or a device is not
    /// waited for.
    fn file(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = File::from(openat(&self.folder, name, flags, mode)?);
        let metadata = file.metadata()?;
        let is_ours = metadata.is_file() && metadata.nlink() == 1 && metadata.uid() == self.owner;
        is_ours.then_some(file).ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }

    /// Returns the counters of the file `name`; zeros if the library that wrote it has other counters.
    pub fn read(&self, name: &str) -> io::Result<impl Iterator<Item = (&'static str, u64)> + use<>> {
        let values = values(&self.file(name, OFlags::RDONLY, Mode::empty())?)?;
        Ok(names().zip(values))
    }

    /// Adds these counters, which are in the order of [`names`], to those of the file `name`.
    ///
    /// Fails with [`io::ErrorKind::WouldBlock`] if another process keeps the lock for half a second.
    pub fn add(&self, name: &str, counters: impl Iterator<Item = (&'static str, u64)>) -> io::Result<()> {
        let lock = self.file(LOCK, OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR)?;
        wait_for(&lock)?;
        // For everybody to read, whatever the umask leaves of it.
        let file = self.file(name, OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
        let before = values(&file)?;
        let sums = counters.zip(before).map(|((_, value), before)| value.wrapping_add(before));
        let bytes: Vec<u8> = std::iter::once(signature()).chain(sums).flat_map(u64::to_ne_bytes).collect();
        if !file_may_have(bytes.len()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Closing the lock gives it back.
        file.write_all_at(&bytes, 0)
    }

    /// Reads so many words from the file `name`, as [`write_words`](Self::write_words) has left them.
    pub fn read_words(&self, name: &str, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.file(name, OFlags::RDONLY, Mode::empty())?.read_exact_at(&mut bytes, 0)?;
        Ok(bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes)).collect())
    }

    /// Writes words to the file `name`, with the lock that [`add`](Self::add) takes.
    pub fn write_words(&self, name: &str, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().copied().flat_map(u64::to_ne_bytes).collect();
        let lock = self.file(LOCK, OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR)?;
        wait_for(&lock)?;
        let file = self.file(name, OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
        if !file_may_have(bytes.len()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        file.write_all_at(&bytes, 0)
    }
}

/// Waits a moment for whoever has it: a program that ends may not be held up by one that was stopped.
fn wait_for(file: &File) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Returns a value for each counter: those of the file, or zeros if it has none of ours.
fn values(file: &File) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; (names().count() + 1) * 8];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        Err(_) => bytes.fill(0),
        Ok(()) => {}
    }
    let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    let is_ours = words.next() == Some(signature());
    Ok(words.map(|word| if is_ours { word } else { 0 }).collect())
}

/// Another library's counters may be others: FNV-1a of the names.
fn signature() -> u64 {
    let bytes = names().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use urxe_net::ipc::credentials::own_uid;

    use super::*;

    /// Folder of final counters, below another.
    const FOLDER: &str = "counters";

    const NAME: &str = "urxe0@1";

    fn run_folder() -> tempfile::TempDir {
        let run = tempfile::tempdir().unwrap();
        fs::create_dir(run.path().join(FOLDER)).unwrap();
        run
    }

    fn open_in(run: &Path, owner: u32) -> io::Result<FinalCounters> {
        FinalCounters::open(&run.join(FOLDER), owner)
    }

    fn counters(run: &tempfile::TempDir) -> FinalCounters {
        open_in(run.path(), own_uid()).unwrap()
    }

    fn ones() -> impl Iterator<Item = (&'static str, u64)> {
        names().map(|name| (name, 1))
    }

    fn read_values(counters: &FinalCounters) -> Vec<u64> {
        counters.read(NAME).unwrap().map(|(_, value)| value).collect()
    }

    #[test]
    fn counts_add_up() {
        let run = run_folder();
        let counters = counters(&run);
        for factor in [1, 10] {
            let counted = names().zip(1_u64..).map(|(name, index)| (name, index * factor));
            counters.add(NAME, counted).unwrap();
        }
        let sums = read_values(&counters);
        assert_eq!(sums.len(), names().count());
        assert!(sums.iter().zip(1_u64..).all(|(sum, index)| *sum == index * 11));
        // Somebody else's file, and one that was cut off, count for nothing.
        let damage: [fn(&File) -> io::Result<()>; 2] = [|file| file.write_all_at(&[7], 0), |file| file.set_len(20)];
        for damage in damage {
            damage(&counters.file(NAME, OFlags::RDWR, Mode::empty()).unwrap()).unwrap();
            assert!(read_values(&counters).iter().all(|value| *value == 0));
        }
    }

    /// Another user may read the file, and so can lock it.
    #[test]
    fn a_lock_on_a_file_of_counters_keeps_nobody_from_counting() {
        let run = run_folder();
        let counters = counters(&run);
        counters.add(NAME, ones()).unwrap();
        let file = counters.file(NAME, OFlags::RDONLY, Mode::empty()).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        counters.add(NAME, ones()).unwrap();
        let lock = run.path().join(FOLDER).join("lock");
        assert_eq!(fs::metadata(lock).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn sums_of_many_at_once() {
        let run = run_folder();
        let counters = counters(&run);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                // One that has waited in vain has counted nothing: a busy machine.
                let add = || while counters.add(NAME, ones()).is_err() {};
                scope.spawn(move || (0..5).for_each(|_| add()));
            }
        });
        assert!(read_values(&counters).iter().all(|value| *value == 20));
    }

    #[test]
    fn nothing_but_a_regular_file_with_one_name_is_opened() {
        let run = run_folder();
        let counters = counters(&run);
        let path = run.path().join(FOLDER).join(NAME);
        let victim = run.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let traps: [&dyn Fn(); 5] = [
            &|| symlink(&victim, &path).unwrap(),
            &|| symlink(run.path().join("not-there"), &path).unwrap(),
            &|| fs::hard_link(&victim, &path).unwrap(),
            &|| fs::create_dir(&path).unwrap(),
            // Not by a child: until it runs its program it holds the locks of other tests, which wait a moment only.
            &|| rustix::fs::mkfifoat(&counters.folder, NAME, Mode::RUSR | Mode::WUSR).unwrap(),
        ];
        for trap in traps {
            trap();
            assert!(counters.add(NAME, ones()).is_err() && counters.file(NAME, OFlags::RDONLY, Mode::empty()).is_err());
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        assert!(!run.path().join("not-there").exists());
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_folder_of_others_or_for_others_is_not_used() {
        let run = run_folder();
        let folder = run.path().join(FOLDER);
        assert!(open_in(run.path(), own_uid() + 1).is_err());
        for mode in [0o1777, 0o775, 0o757] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert!(open_in(run.path(), own_uid()).is_err(), "{mode:o}");
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(open_in(run.path(), own_uid()).is_ok());
        fs::rename(&folder, run.path().join("elsewhere")).unwrap();
        symlink(run.path().join("elsewhere"), &folder).unwrap();
        assert!(open_in(run.path(), own_uid()).is_err());
    }
}
