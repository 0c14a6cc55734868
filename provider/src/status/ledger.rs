//! What devices that are no more have counted, for as long as `urxe run` lasts.
//!
//! A card counts for everybody: who looks at its counters, starts a program, and looks again after its end, sees what the
//! program did. So a device that goes adds what it has counted to a file in the folder of `urxe run`, one for each device
//! and network namespace. A program that is killed has no time for that. Elsewhere there is no such folder, and no ledger.
//!
//! The file holds a number that stands for the names of the counters, and their values, each of eight bytes in the order
//! of the machine. Other users' programs may be part of the run, so everybody may write to it, and nothing in it is
//! relied upon.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

/// How often to ask for a file that somebody else has, with a millisecond in between.
const ATTEMPTS: usize = 100;

/// Adds what the device has counted. What goes wrong costs counts, and concerns nobody.
pub(crate) fn add(device: &str, counters: impl Iterator<Item = (&'static str, u64)>) {
    if let Some(path) = path(device) {
        let _ = add_to(&path, counters);
    }
}

/// What devices of this name have counted that are no more.
pub(crate) fn read(device: &str) -> impl Iterator<Item = (&'static str, u64)> {
    let values = path(device).and_then(|path| values(&File::open(path).ok()?).ok());
    urxe_status::names().zip(values.unwrap_or_default())
}

/// Where it is, if `urxe run` started this program.
fn path(device: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::ffi::OsStr::from_bytes(urxe_preload::folder()?));
    let network = fs::metadata("/proc/self/ns/net").ok()?.ino();
    Some(folder.join(urxe_options::RUN_LEDGER).join(format!("{device}@{network}")))
}

fn add_to(path: &PathBuf, counters: impl Iterator<Item = (&'static str, u64)>) -> io::Result<()> {
    let file = open(path)?;
    lock(&file)?;
    let before = values(&file)?;
    let sums = counters.zip(before).map(|((_, value), before)| value.wrapping_add(before));
    let bytes: Vec<u8> = std::iter::once(signature()).chain(sums).flat_map(u64::to_ne_bytes).collect();
    // Closing it unlocks it.
    file.write_all_at(&bytes, 0)
}

/// The file, which is made if need be. Not by O_CREAT alone: the kernel would refuse the one that another user has made
/// (`fs.protected_regular`, proc_sys_fs(5)).
fn open(path: &PathBuf) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match options.create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.create_new(false).open(path),
        created => {
            let file = created?;
            // Whatever the umask.
            file.set_permissions(fs::Permissions::from_mode(0o666))?;
            Ok(file)
        }
    }
}

/// Waits a moment for whoever has it: a program that ends may not be held up by one that was stopped.
fn lock(file: &File) -> io::Result<()> {
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

    fn folder() -> PathBuf {
        let name = format!("urxe-ledger-{}-{:?}", std::process::id(), std::thread::current().id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn counts_add_up() {
        let folder = folder();
        let path = folder.join("urxe0@1");
        for factor in [1, 10] {
            add_to(&path, urxe_status::names().zip(1_u64..).map(|(name, index)| (name, index * factor))).unwrap();
        }
        let sums = values(&File::open(&path).unwrap()).unwrap();
        assert_eq!(sums.len(), urxe_status::names().count());
        assert!(sums.iter().zip(1_u64..).all(|(sum, index)| *sum == index * 11));
        // Somebody else's file, and one that was cut off, count for nothing.
        let damage: [fn(&File) -> io::Result<()>; 2] = [|file| file.write_all_at(&[7], 0), |file| file.set_len(20)];
        for damage in damage {
            let file = open(&path).unwrap();
            damage(&file).unwrap();
            assert!(values(&file).unwrap().iter().all(|value| *value == 0));
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sums_of_many_at_once() {
        let folder = folder();
        let path = &folder.join("urxe0@1");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    (0..5).for_each(|_| add_to(path, urxe_status::names().map(|name| (name, 1))).unwrap());
                });
            }
        });
        assert!(values(&File::open(path).unwrap()).unwrap().iter().all(|value| *value == 20));
        fs::remove_dir_all(folder).unwrap();
    }
}
