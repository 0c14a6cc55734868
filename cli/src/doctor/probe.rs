//! A process that opens a device as any program would: by libibverbs.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::Finding;
use crate::options::Settings;

/// Name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "probe";

/// Stands for the path of this command.
const THIS: &str = "urxe";

/// Probes as a program that `urxe run` starts.
pub(super) fn by_run(settings: &Settings) -> Finding {
    finding(settings, &["run", "--", THIS, SUBCOMMAND], "`urxe run`")
}

/// Probes as a program that is started by itself.
pub(super) fn installed(settings: &Settings) -> Finding {
    finding(settings, &[SUBCOMMAND], "a program")
}

fn finding(settings: &Settings, words: &[&str], who: &str) -> Finding {
    let output = std::env::current_exe().context("finding this executable").and_then(|path| {
        // Of the process that `urxe run` becomes, /proc/self/exe would be another.
        let words = words.iter().map(|word| if *word == THIS { path.as_os_str() } else { (*word).as_ref() });
        let mut probe = Command::new(&path);
        probe.args(words).envs(settings.variables()).stdin(Stdio::null());
        Ok(probe.output()?)
    });
    match output {
        Ok(output) if output.status.success() => {
            Finding::fine(format!("{who} opens {}", String::from_utf8_lossy(&output.stdout).trim()))
        }
        Ok(output) => Finding::problem(
            format!("{who} cannot open a device: {}", said(&String::from_utf8_lossy(&output.stderr))),
            "the lines above say more, if they are not all fine",
        ),
        Err(error) => Finding::error(&error),
    }
}

/// All that it said, in one line: the library's reason stands in front of the errno.
fn said(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(|line| line.trim_start_matches("urxe: ").trim_start()).collect();
    if lines.is_empty() { "it said nothing".to_owned() } else { lines.join("; ") }
}

type GetDeviceList = unsafe extern "C" fn(count: *mut c_int) -> *mut *mut c_void;
type GetDeviceName = unsafe extern "C" fn(device: *mut c_void) -> *const c_char;
type OpenDevice = unsafe extern "C" fn(device: *mut c_void) -> *mut c_void;

/// Opens the first device that there is, and prints its name.
pub(crate) fn run() -> Result<()> {
    // SAFETY: names. What is found under them has these types (`<infiniband/verbs.h>`).
    let (list, name, open) = unsafe {
        let handle = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW);
        let find = |name: &CStr| if handle.is_null() { handle } else { libc::dlsym(handle, name.as_ptr()) };
        let found = (find(c"ibv_get_device_list"), find(c"ibv_get_device_name"), find(c"ibv_open_device"));
        if found.0.is_null() || found.1.is_null() || found.2.is_null() {
            bail!("libibverbs.so.1 cannot be loaded");
        }
        (
            std::mem::transmute::<*mut c_void, GetDeviceList>(found.0),
            std::mem::transmute::<*mut c_void, GetDeviceName>(found.1),
            std::mem::transmute::<*mut c_void, OpenDevice>(found.2),
        )
    };
    let mut count = 0;
    // SAFETY: as ibv_get_device_list(3) says: a list of `count` devices, or null.
    let devices = unsafe { list(&raw mut count) };
    if devices.is_null() {
        bail!("libibverbs has no devices: {}", std::io::Error::last_os_error());
    }
    if count < 1 {
        bail!("libibverbs lists no device");
    }
    // SAFETY: the first of at least one.
    let device = unsafe { *devices };
    // SAFETY: a device; its name is a C string.
    let name = unsafe { CStr::from_ptr(name(device)) }.to_string_lossy();
    // SAFETY: a device. It is closed with the process.
    if unsafe { open(device) }.is_null() {
        bail!("{name}: {}", std::io::Error::last_os_error());
    }
    crate::out::print(&format!("{name}\n"))
}
