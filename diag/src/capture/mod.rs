//! Captures: what this process sends and receives, as a pcapng file that Wireshark opens without settings.
//!
//! A process has one file. Every device is an interface in it, named after the process and the device. Packets are
//! written when the burst that they belong to is through, so that a program that is killed leaves all but its last burst.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use urxe_net::cancellation::CancelGuard;
use urxe_net::identity::CheckedFd;
use urxe_options::Capture as Settings;
use urxe_pcapng::{Addresses, Direction, Writer};
use urxe_wire::icrc::Check;

use urxe_runtime::lock;

/// Bytes collected before they are written in any case.
const BUFFER: usize = 1 << 18;

/// The file of this process.
#[derive(Debug)]
pub(super) struct Capture {
    pid: u32,
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    path: PathBuf,
    /// `None` after an error: a full disk must not keep the program from working.
    file: Option<CaptureFile>,
    written: u64,
    interfaces: Vec<(String, String)>,
    writer: Writer,
}

/// Open file that the application may close, with all others of the process.
#[derive(Debug)]
struct CaptureFile(CheckedFd);

impl From<File> for CaptureFile {
    fn from(file: File) -> Self {
        Self(OwnedFd::from(file).into())
    }
}

impl CaptureFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.0.is_ours() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: lent for the call, and never closed here.
        ManuallyDrop::new(unsafe { File::from_raw_fd(self.0.as_raw_fd()) }).write_all(bytes)
    }
}

/// One device's place in the file.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    capture: Arc<Capture>,
    id: u32,
}

/// The capture that devices of this process share, while one is open.
static OPEN: Mutex<Weak<Capture>> = Mutex::new(Weak::new());

impl Interface {
    /// The device `name` on `netdev` in the file of this process, which is begun if need be.
    pub(super) fn open(settings: &Settings, name: &str, netdev: &str) -> io::Result<Self> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        let capture = match open.upgrade().filter(|capture| capture.pid == pid) {
            Some(capture) => capture,
            None => {
                let capture = Arc::new(Capture::create(settings, pid)?);
                *open = Arc::downgrade(&capture);
                capture
            }
        };
        let process = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let name = format!("{}[{pid}] {name}", process.trim_end());
        let id = {
            let mut state = lock(&capture.state);
            let description = format!("urxe on {netdev}");
            state.writer.interface(&name, &description);
            state.interfaces.push((name, description));
            let id = u32::try_from(state.interfaces.len() - 1).unwrap_or(u32::MAX);
            state.flush(settings);
            id
        };
        Ok(Self { capture, id })
    }

    /// Notes a packet (BTH to ICRC) that was sent `from` one endpoint `to` another with an IPv4 identification.
    pub(super) fn sent(&self, from: SocketAddr, to: SocketAddr, id: u16, packet: &[u8], comments: &[String]) {
        self.note(Direction::Sent, &Addresses::new(from, to, id), packet, now(), comments);
    }

    /// Notes a packet that was received.
    pub(super) fn received(&self, packet: &Received, comments: &[String]) {
        let Received { from, to, check, tclass, hop_limit, expected_id, at, .. } = *packet;
        let addresses = Addresses::new(from, to, expected_id).recovered(check);
        let hop_limit = if hop_limit == 0 { addresses.hop_limit } else { hop_limit };
        let addresses = Addresses { tclass, hop_limit, ..addresses };
        self.note(Direction::Received, &addresses, &packet.bytes, at, comments);
    }

    fn note(&self, direction: Direction, addresses: &Addresses, packet: &[u8], at: u64, comments: &[String]) {
        let settings = &self.capture.settings;
        let mut state = lock(&self.capture.state);
        state.writer.packet(self.id, direction, at, addresses, packet, comments);
        if state.writer.bytes().len() >= BUFFER {
            state.flush(settings);
        }
    }

    /// Writes what has been noted.
    pub(super) fn flush(&self) {
        lock(&self.capture.state).flush(&self.capture.settings);
    }
}

/// A packet that was received, kept until it is known what became of it.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) tclass: u8,
    pub(super) hop_limit: u8,
    pub(super) expected_id: u16,
    pub(super) check: Check,
    /// Nanoseconds since 1970.
    pub(super) at: u64,
    /// BTH to ICRC.
    pub(super) bytes: Vec<u8>,
}

/// Nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Capture {
    fn create(settings: &Settings, pid: u32) -> io::Result<Self> {
        let (path, file) = claim(&settings.path, pid)?;
        let state = State {
            path,
            file: Some(file.into()),
            written: 0,
            interfaces: Vec::new(),
            writer: Writer::new(APPLICATION, settings.snaplen),
        };
        Ok(Self { pid, settings: settings.clone(), state: Mutex::new(state) })
    }
}

const APPLICATION: &str = concat!("urxe ", env!("CARGO_PKG_VERSION"));

impl State {
    fn flush(&mut self, settings: &Settings) {
        let _guard = CancelGuard::new();
        if let Some(file) = &mut self.file
            && !self.writer.bytes().is_empty()
        {
            match file.write_all(self.writer.bytes()) {
                Ok(()) => self.written += self.writer.bytes().len() as u64,
                Err(error) => {
                    super::complain(&format_args!("the capture ends here: {}: {error}", self.path.display()));
                    self.file = None;
                }
            }
        }
        self.writer.clear();
        if let Some((size, keep)) = settings.rotation
            && self.file.is_some()
            && self.written >= size
        {
            self.rotate(settings, keep);
        }
    }

    /// `file` becomes `file.1`, that `file.2`, and so on; a new `file` is begun.
    fn rotate(&mut self, settings: &Settings, keep: u32) {
        let kept = (1..keep).take_while(|number| numbered(&self.path, *number).exists()).count();
        for number in (0..keep).take(kept + 1).rev() {
            let from = if number == 0 { self.path.clone() } else { numbered(&self.path, number) };
            // A capture that cannot be kept is written over.
            let _ = std::fs::rename(from, numbered(&self.path, number + 1));
        }
        // Its lock goes with it, which would be in the way where none is kept.
        self.file = None;
        match open(&self.path) {
            Ok(file) => {
                let _ = try_lock(&file);
                let _ = file.set_len(0);
                self.file = Some(file.into());
                self.written = 0;
                self.writer = Writer::new(APPLICATION, settings.snaplen);
                for (name, description) in &self.interfaces {
                    self.writer.interface(name, description);
                }
            }
            Err(error) => {
                super::complain(&format_args!("the capture ends here: {}: {error}", self.path.display()));
                self.file = None;
            }
        }
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Opens the file for this process alone. When another process is writing to it, this one's gets its process id before
/// the extension.
fn claim(path: &Path, pid: u32) -> io::Result<(PathBuf, File)> {
    let text = path.to_string_lossy();
    let path = if text.contains("%p") { PathBuf::from(text.replace("%p", &pid.to_string())) } else { path.to_owned() };
    let file = open(&path)?;
    // What is no regular file, such as a pipe to Wireshark, is for whoever says so.
    if !file.metadata()?.is_file() {
        return Ok((path, file));
    }
    if try_lock(&file) {
        file.set_len(0)?;
        return Ok((path, file));
    }
    let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
    let own = match extension {
        Some(extension) => path.with_extension(format!("{pid}.{extension}")),
        None => path.with_extension(pid.to_string()),
    };
    let file = open(&own)?;
    try_lock(&file);
    file.set_len(0)?;
    Ok((own, file))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

/// Whether the file is locked for us now.
fn try_lock(file: &File) -> bool {
    // SAFETY: a descriptor of ours; does not wait.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes bursts to a capture that keeps `keep` files. Returns the files in the folder, with their sizes, and the
    /// name that a second capture claims.
    fn rotated(keep: u32, bursts: &[usize]) -> (Vec<(String, usize)>, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it.pcapng");
        let settings = Settings { path: path.clone(), snaplen: 0, rotation: Some((1, keep)) };
        let capture = Capture::create(&settings, 7).unwrap();
        for burst in bursts {
            let mut state = lock(&capture.state);
            // A section of its own, of which more names make more bytes.
            state.writer = Writer::new(&"x".repeat(*burst), 0);
            state.flush(&settings);
        }
        let (other, _) = claim(&path, 8).unwrap();
        let length = |entry: io::Result<std::fs::DirEntry>| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), usize::try_from(entry.metadata().unwrap().len()).unwrap())
        };
        let mut files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(length).collect();
        files.sort();
        (files, other.strip_prefix(folder.path()).unwrap().to_owned())
    }

    /// The application has closed the capture's descriptor and opened a file under its number: that file stays as it is.
    #[test]
    fn a_file_of_the_application_is_not_written_to() {
        let files = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let mut capture = CaptureFile::from(files[0].try_clone().unwrap());
        capture.write_all(b"packets").unwrap();
        // SAFETY: replaces what is under a number that nobody but `capture` knows.
        let put = unsafe { libc::dup3(files[1].as_raw_fd(), capture.0.as_raw_fd(), libc::O_CLOEXEC) };
        assert_eq!(put, capture.0.as_raw_fd());
        assert_eq!(capture.write_all(b"packets").unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(files.each_ref().map(|file| file.metadata().unwrap().len()), [7, 0]);
        drop(capture);
        // SAFETY: the number is nobody's any more.
        assert_eq!(unsafe { libc::close(put) }, 0, "it is the application's to close");
    }

    #[test]
    fn as_many_old_captures_are_kept_as_asked_for() {
        let bursts = [4, 8, 12, 16];
        let size = |burst: &usize| Writer::new(&"x".repeat(*burst), 0).bytes().len();
        let (current, other) = (("it.pcapng".to_owned(), 0), ("it.8.pcapng".to_owned(), 0));
        for (keep, old) in [(0, &[][..]), (1, &[16]), (3, &[16, 12, 8]), (u32::MAX, &[16, 12, 8, 4])] {
            let old = (1..).zip(old).map(|(number, length)| (format!("it.pcapng.{number}"), size(length)));
            let expected: Vec<_> = [other.clone(), current.clone()].into_iter().chain(old).collect();
            let (files, elsewhere) = rotated(keep, &bursts);
            assert_eq!(files, expected, "{keep}");
            assert_eq!(elsewhere, Path::new("it.8.pcapng"), "another process keeps off");
        }
    }
}
