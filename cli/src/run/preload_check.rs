//! Programs that the library is not loaded into, so that they see nothing of urxe.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Offsets in the header of an ELF file of 64 bits (elf(5), `Elf64_Ehdr`).
const PHOFF: usize = 32;
const PHENTSIZE: usize = 54;
const PHNUM: usize = 56;
const EHDR_LEN: usize = 64;

/// Why the dynamic linker does not load it (ld.so(8), `LD_PRELOAD`).
#[derive(Debug, PartialEq, Eq)]
enum Reason {
    Static,
    OtherRights,
}

/// A program that does not notice, and why.
#[derive(Debug)]
pub(super) struct Unpreloaded {
    program: PathBuf,
    reason: Reason,
}

impl Unpreloaded {
    /// Whether the program sees the files that mounts show.
    pub(super) fn sees_files(&self) -> bool {
        self.reason == Reason::Static
    }
}

impl fmt::Display for Unpreloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.reason {
            Reason::Static => "is statically linked",
            Reason::OtherRights => "runs with other rights than yours (setuid or setgid)",
        };
        write!(f, "{} {why}: it sees no device of urxe; what it starts may", self.program.display())
    }
}

/// Whether `name`, looked for as a shell would, is such a program. What cannot be read is not.
pub(super) fn without_preload(name: &OsStr) -> Option<Unpreloaded> {
    let program = find(name)?;
    let reason = reason(&program).ok().flatten()?;
    Some(Unpreloaded { program, reason })
}

fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(is_program)
}

fn reason(program: &Path) -> io::Result<Option<Reason>> {
    // To open a pipe would wait for somebody to write; and a program with other rights often cannot be read.
    let metadata = program.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    // SAFETY: these ask only.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let is_set = |bit: libc::mode_t| metadata.mode() & bit != 0;
    if (is_set(libc::S_ISUID) && metadata.uid() != user) || (is_set(libc::S_ISGID) && metadata.gid() != group) {
        return Ok(Some(Reason::OtherRights));
    }
    Ok(is_static(&File::open(program)?)?.then_some(Reason::Static))
}

/// Whether the file is an ELF executable that names no dynamic linker (`PT_INTERP`).
fn is_static(file: &File) -> io::Result<bool> {
    let mut header = [0; EHDR_LEN];
    if file.read_at(&mut header, 0)? < EHDR_LEN
        || !header.starts_with(b"\x7fELF")
        || header[libc::EI_CLASS] != libc::ELFCLASS64
    {
        return Ok(false);
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let Some(offset) = header[PHOFF..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)) else { return Ok(false) };
    for index in 0..u64::from(half(PHNUM)) {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, offset.saturating_add(index * u64::from(half(PHENTSIZE))))?;
        if u32::from_ne_bytes(kind) == libc::PT_INTERP {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_and_folders_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success() && without_preload(pipe.as_os_str()).is_none());
        assert!(without_preload(folder.path().as_os_str()).is_none());
    }

    #[test]
    fn programs_with_a_dynamic_linker_are_not() {
        assert!(without_preload(OsStr::new("true")).is_none());
        assert!(without_preload(OsStr::new("no-such-program")).is_none());
        assert!(without_preload(OsStr::new("/etc/passwd")).is_none());
        assert_eq!(reason(&std::env::current_exe().unwrap()).unwrap(), None);
    }

    /// A program like sudo on some distributions. Only root can make such a file.
    #[test]
    fn a_program_with_other_rights_need_not_be_readable() {
        // SAFETY: it asks only.
        if unsafe { libc::geteuid() } != 0 {
            println!("left out: this user is not root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, "").unwrap();
        std::os::unix::fs::chown(&program, Some(1), None).unwrap();
        for (path, mode) in [(folder.path(), 0o755), (&program, 0o4111)] {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        let as_nobody = std::thread::spawn(move || {
            // SAFETY: no pointers. It is about this thread alone.
            unsafe { libc::setfsuid(65534) };
            assert!(File::open(&program).is_err(), "it can be read, this shows nothing");
            reason(&program).unwrap()
        });
        assert_eq!(as_nobody.join().unwrap(), Some(Reason::OtherRights));
    }

    #[test]
    fn an_executable_without_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut program = [0; EHDR_LEN + 56];
        program[..4].copy_from_slice(b"\x7fELF");
        program[libc::EI_CLASS] = libc::ELFCLASS64;
        for (at, value) in [(PHOFF, 64), (PHENTSIZE, 56), (PHNUM, 1)] {
            program[at..at + 2].copy_from_slice(&u16::to_ne_bytes(value));
        }
        let with = |kind: u32| {
            let mut program = program;
            program[EHDR_LEN..EHDR_LEN + 4].copy_from_slice(&kind.to_ne_bytes());
            file.as_file().write_all_at(&program, 0).unwrap();
            reason(file.path()).unwrap()
        };
        assert_eq!(with(libc::PT_LOAD), Some(Reason::Static));
        assert_eq!(with(libc::PT_INTERP), None);
        let said = without_preload(file.path().as_os_str());
        assert!(said.is_none(), "{said:?}");
    }
}
