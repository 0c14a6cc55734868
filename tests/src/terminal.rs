//! A terminal that a test sits at: keys go in, and the screen is read as a person reads it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::world::wait_until;

/// A program at a terminal (pty(7)) of its own. Dropping it kills the program.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keyboard: File,
    /// The program's end, kept so that its settings can be read when the program has ended.
    end: OwnedFd,
    parser: Arc<Mutex<Screen>>,
}

struct Screen {
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.parser.screen().contents())
    }
}

impl Terminal {
    /// Starts `command` at a terminal of so many rows and columns.
    pub fn start(mut command: Command, rows: u16, columns: u16) -> Result<Self> {
        let (master, end) = pair(rows, columns)?;
        command.stdin(end.try_clone()?).stdout(end.try_clone()?).stderr(end.try_clone()?);
        command.env("TERM", "xterm-256color");
        // SAFETY: plain system calls, which may run between fork and exec; descriptor 0 is the terminal by then.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().context("starting a program at a terminal")?;
        let screen = Screen { parser: vt100::Parser::new(rows, columns, 0), bytes: Vec::new() };
        let parser = Arc::new(Mutex::new(screen));
        let (mut output, sink) = (File::from(master.try_clone()?), Arc::clone(&parser));
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut chunk) {
                let mut screen = sink.lock().unwrap_or_else(PoisonError::into_inner);
                screen.parser.process(&chunk[..length]);
                screen.bytes.extend_from_slice(&chunk[..length]);
            }
        });
        Ok(Self { child, keyboard: File::from(master), end, parser })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types keys.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.keyboard.write_all(keys.as_bytes())?)
    }

    /// Lines of the screen as it is now.
    pub fn screen(&self) -> String {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).parser.screen().contents()
    }

    /// Whether the program has the screen that programs leave again (`smcup`).
    pub fn is_full_screen(&self) -> bool {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).parser.screen().alternate_screen()
    }

    /// Waits for a screen.
    pub fn wait_for(&self, what: &str, mut is_it: impl FnMut(&str) -> bool) -> Result<String> {
        let mut screen = String::new();
        wait_until(what, || {
            screen = self.screen();
            Ok(is_it(&screen))
        })
        .with_context(|| format!("on the screen:\n{}", self.screen()))?;
        Ok(screen)
    }

    /// Gives the terminal another size, as when its window is drawn larger.
    pub fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        let size = size(rows, columns);
        // SAFETY: the descriptor is a terminal, and `size` outlives the call.
        let result = unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        ensure!(result == 0, "TIOCSWINSZ: {}", std::io::Error::last_os_error());
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).parser.screen_mut().set_size(rows, columns);
        Ok(())
    }

    /// Whether lines are edited and keys are echoed, as in a shell (`ICANON`, `ECHO`).
    pub fn is_cooked(&self) -> Result<bool> {
        // SAFETY: all zeros are a termios, which the call overwrites.
        let mut settings: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is a terminal, and `settings` outlives the call.
        let result = unsafe { libc::tcgetattr(self.end.as_raw_fd(), &raw mut settings) };
        ensure!(result == 0, "tcgetattr: {}", std::io::Error::last_os_error());
        Ok(settings.c_lflag & (libc::ICANON | libc::ECHO) == libc::ICANON | libc::ECHO)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: libc::c_int) -> Result<()> {
        let pid = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: `kill` takes no pointers; the child has not been reaped, so the id is still its own.
        let result = unsafe { libc::kill(pid, signal) };
        (result == 0).then_some(()).with_context(|| format!("kill {pid}: {}", std::io::Error::last_os_error()))
    }

    /// Waits for the program's end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let mut status = None;
        wait_until("the program at the terminal ends", || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })
        .with_context(|| format!("on the screen:\n{}", self.screen()))?;
        status.context("no status")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only when it has ended and was reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const fn size(rows: u16, columns: u16) -> libc::winsize {
    libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Both ends of a terminal: the keyboard and screen, and the program's.
fn pair(rows: u16, columns: u16) -> Result<(OwnedFd, OwnedFd)> {
    let (mut master, mut end) = (-1, -1);
    let size = size(rows, columns);
    // SAFETY: the descriptors are written to integers that outlive the call, `size` is read; the name is not asked for.
    let result = unsafe {
        libc::openpty(&raw mut master, &raw mut end, std::ptr::null_mut(), std::ptr::null(), &raw const size)
    };
    ensure!(result == 0, "openpty: {}", std::io::Error::last_os_error());
    for descriptor in [master, end] {
        // SAFETY: descriptors of ours. Programs that other tests start must not have them.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: `openpty` made both for us.
    Ok(unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(end)) })
}
