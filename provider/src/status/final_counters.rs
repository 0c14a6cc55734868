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

use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use urxe_net::ipc::credentials::{file_may_have, own_uid};

/// How often to ask for a file that somebody else has, with a millisecond in between.
const ATTEMPTS: usize = 100;

/// Name of the lock.
const LOCK: &CStr = c"lock";

/// Permission to write for the group or for everybody.
const SHARED: u32 = 0o022;

/// Adds what the device has counted. What goes wrong costs counts, and concerns nobody.
pub(crate) fn add(device: &str, counters: impl Iterator<Item = (&'static str, u64)>) {
    if let Some(folder) = urxe_preload::folder() {
        let _ = FinalCounters::open(Path::new(OsStr::from_bytes(folder)), own_uid())
            .and_then(|kept| kept.add(&name(device)?, counters));
    }
}

/// Returns the counters of closed devices of this name.
pub(crate) fn read(device: &str) -> impl Iterator<Item = (&'static str, u64)> {
    let read = || {
        let folder = Path::new(OsStr::from_bytes(urxe_preload::folder()?));
        // This user's, or root's, if root has started this program as another user.
        let counters = FinalCounters::open(folder, own_uid()).or_else(|_| FinalCounters::open(folder, 0)).ok()?;
        values(&counters.file(&name(device).ok()?, libc::O_RDONLY, 0).ok()?).ok()
    };
    urxe_status::names().zip(read().unwrap_or_default())
}

/// The name of a device's file in this network namespace.
fn name(device: &str) -> io::Result<CString> {
    let network = fs::metadata("/proc/self/ns/net")?.ino();
    Ok(CString::new(format!("{device}@{network}"))?)
}

/// The folder of the files, and the user that it and they belong to.
struct FinalCounters {
    folder: File,
    owner: u32,
}

impl FinalCounters {
    /// In the folder of `urxe run`, if it is the user `owner`'s and nobody else may write there.
    fn open(run: &Path, owner: u32) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
        let folder = options.open(run.join(urxe_options::RUN_FINAL_COUNTERS))?;
        let metadata = folder.metadata()?;
        if metadata.uid() != owner || metadata.mode() & SHARED != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Self { folder, owner })
    }

    /// Opens the file `name`, or makes it with this mode: a regular file of the owner's with one name. A pipe or a device is not
    /// waited for.
    fn file(&self, name: &CStr, flags: libc::c_int, mode: libc::mode_t) -> io::Result<File> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        // SAFETY: a descriptor and a C string.
        let fd = unsafe { libc::openat(self.folder.as_raw_fd(), name.as_ptr(), flags, mode) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new, and ours.
        let file = unsafe { File::from_raw_fd(fd) };
        let metadata = file.metadata()?;
        let is_ours = metadata.is_file() && metadata.nlink() == 1 && metadata.uid() == self.owner;
        is_ours.then_some(file).ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }

    fn add(&self, name: &CString, counters: impl Iterator<Item = (&'static str, u64)>) -> io::Result<()> {
        let lock = self.file(LOCK, libc::O_RDWR | libc::O_CREAT, 0o600)?;
        wait_for(&lock)?;
        // For everybody to read, whatever the umask leaves of it.
        let file = self.file(name, libc::O_RDWR | libc::O_CREAT, 0o644)?;
        let before = values(&file)?;
        let sums = counters.zip(before).map(|((_, value), before)| value.wrapping_add(before));
        let bytes: Vec<u8> = std::iter::once(signature()).chain(sums).flat_map(u64::to_ne_bytes).collect();
        if !file_may_have(bytes.len()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Closing the lock gives it back.
        file.write_all_at(&bytes, 0)
    }
}

/// Waits a moment for whoever has it: a program that ends may not be held up by one that was stopped.
fn wait_for(file: &File) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        // SAFETY: a descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// As many values as there are counters: those of the file, or zeros if it has none of ours.
fn values(file: &File) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; (urxe_status::names().count() + 1) * 8];
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
    let bytes = urxe_status::names().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A folder of `urxe run` for final counters.
    fn run_folder() -> tempfile::TempDir {
        let run = tempfile::tempdir().unwrap();
        fs::create_dir(run.path().join(urxe_options::RUN_FINAL_COUNTERS)).unwrap();
        run
    }

    fn counters(run: &tempfile::TempDir) -> FinalCounters {
        FinalCounters::open(run.path(), own_uid()).unwrap()
    }

    fn ones() -> impl Iterator<Item = (&'static str, u64)> {
        urxe_status::names().map(|name| (name, 1))
    }

    fn read_values(counters: &FinalCounters, name: &CString) -> Vec<u64> {
        values(&counters.file(name, libc::O_RDONLY, 0).unwrap()).unwrap()
    }

    #[test]
    fn counts_add_up() {
        let run = run_folder();
        let (counters, name) = (counters(&run), c"urxe0@1".to_owned());
        for factor in [1, 10] {
            let counted = urxe_status::names().zip(1_u64..).map(|(name, index)| (name, index * factor));
            counters.add(&name, counted).unwrap();
        }
        let sums = read_values(&counters, &name);
        assert_eq!(sums.len(), urxe_status::names().count());
        assert!(sums.iter().zip(1_u64..).all(|(sum, index)| *sum == index * 11));
        // Somebody else's file, and one that was cut off, count for nothing.
        let damage: [fn(&File) -> io::Result<()>; 2] = [|file| file.write_all_at(&[7], 0), |file| file.set_len(20)];
        for damage in damage {
            damage(&counters.file(&name, libc::O_RDWR, 0).unwrap()).unwrap();
            assert!(read_values(&counters, &name).iter().all(|value| *value == 0));
        }
    }

    /// Another user may read the file, and so can lock it.
    #[test]
    fn a_lock_on_a_file_of_counters_keeps_nobody_from_counting() {
        let run = run_folder();
        let (counters, name) = (counters(&run), c"urxe0@1".to_owned());
        counters.add(&name, ones()).unwrap();
        let file = counters.file(&name, libc::O_RDONLY, 0).unwrap();
        // SAFETY: a descriptor.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }, 0);
        counters.add(&name, ones()).unwrap();
        let lock = run.path().join(urxe_options::RUN_FINAL_COUNTERS).join("lock");
        assert_eq!(fs::metadata(lock).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn sums_of_many_at_once() {
        let run = run_folder();
        let (counters, name) = (counters(&run), c"urxe0@1".to_owned());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                // One that has waited in vain has counted nothing: a busy machine.
                let add = || while counters.add(&name, ones()).is_err() {};
                scope.spawn(move || (0..5).for_each(|_| add()));
            }
        });
        assert!(read_values(&counters, &name).iter().all(|value| *value == 20));
    }

    #[test]
    fn nothing_but_a_regular_file_with_one_name_is_opened() {
        let run = run_folder();
        let (counters, name) = (counters(&run), c"urxe0@1".to_owned());
        let path = run.path().join(urxe_options::RUN_FINAL_COUNTERS).join("urxe0@1");
        let victim = run.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let traps: [&dyn Fn(); 5] = [
            &|| symlink(&victim, &path).unwrap(),
            &|| symlink(run.path().join("not-there"), &path).unwrap(),
            &|| fs::hard_link(&victim, &path).unwrap(),
            &|| fs::create_dir(&path).unwrap(),
            &|| assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success()),
        ];
        for trap in traps {
            trap();
            assert!(counters.add(&name, ones()).is_err() && counters.file(&name, libc::O_RDONLY, 0).is_err());
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        assert!(!run.path().join("not-there").exists());
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_folder_of_others_or_for_others_is_not_used() {
        let run = run_folder();
        let folder = run.path().join(urxe_options::RUN_FINAL_COUNTERS);
        assert!(FinalCounters::open(run.path(), own_uid() + 1).is_err());
        for mode in [0o1777, 0o775, 0o757] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert!(FinalCounters::open(run.path(), own_uid()).is_err(), "{mode:o}");
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(FinalCounters::open(run.path(), own_uid()).is_ok());
        fs::rename(&folder, run.path().join("elsewhere")).unwrap();
        symlink(run.path().join("elsewhere"), &folder).unwrap();
        assert!(FinalCounters::open(run.path(), own_uid()).is_err());
    }
}
