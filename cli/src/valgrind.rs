//! Suppressions for valgrind, and how a valgrind below `urxe run` finds them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The file's name, in the folder of a run and in that of an installation.
pub(crate) const FILE: &str = "valgrind.supp";

/// The file.
pub(crate) const SUPPRESSIONS: &str = include_str!("valgrind.supp");

/// Variable with options that valgrind reads before those of its command line.
pub(crate) const VARIABLE: &str = "VALGRIND_OPTS";

/// Value of [`VARIABLE`] that names the suppressions in `file` as well as what is there `before`. `None` if valgrind, which
/// splits the value at white space, could not read the path.
pub(crate) fn options(file: &Path, before: Option<&OsStr>) -> Option<OsString> {
    if file.as_os_str().as_bytes().iter().any(u8::is_ascii_whitespace) {
        return None;
    }
    let mut value = before.unwrap_or_default().to_owned();
    if !value.is_empty() {
        value.push(" ");
    }
    value.push("--suppressions=");
    value.push(file);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_others_stay() {
        let value = |file: &str, before: Option<&str>| options(Path::new(file), before.map(OsStr::new));
        assert_eq!(value("/r/f", None).unwrap(), "--suppressions=/r/f");
        assert_eq!(value("/r/f", Some("-q")).unwrap(), "-q --suppressions=/r/f");
        assert_eq!(value("/with space/f", None), None);
    }
}
