//! Forked processes: the child runs a closure, and its failure is the parent's.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context as _, Result, bail, ensure};

use super::PATIENCE;

/// A child process, and a line to it.
pub struct Child {
    pid: libc::pid_t,
    /// Carries numbers, then the child's failure.
    line: UnixStream,
    reaped: bool,
}

/// The child's end of the line.
pub struct Parent(UnixStream);

impl Child {
    /// Forks; the child runs `body` and exits, without dropping anything that it inherited.
    pub fn fork(body: impl FnOnce(&mut Parent) -> Result<()>) -> Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        line.set_read_timeout(Some(PATIENCE))?;
        theirs.set_read_timeout(Some(2 * PATIENCE))?;
        // SAFETY: glibc keeps its own locks usable in the child; the rest of what it runs is up to `body`.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => bail!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                drop(line);
                let mut parent = Parent(theirs);
                let result = catch_unwind(AssertUnwindSafe(|| body(&mut parent)));
                let failure = match result {
                    Ok(Ok(())) => String::new(),
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(_) => "it panicked".to_owned(),
                };
                let _ = parent.0.write_all(failure.as_bytes());
                // SAFETY: ends the child at once; destructors are the parent's to run.
                unsafe { libc::_exit(i32::from(!failure.is_empty())) };
            }
            pid => Ok(Self { pid, line, reaped: false }),
        }
    }

    /// Sends numbers.
    pub fn send(&mut self, numbers: &[u64]) -> Result<()> {
        send(&mut self.line, numbers)
    }

    /// Receives as many numbers.
    pub fn receive<const N: usize>(&mut self) -> Result<[u64; N]> {
        receive(&mut self.line).context("from the child")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: libc::c_int) -> Result<()> {
        // SAFETY: our child, not waited for yet, so the id is its own.
        let sent = unsafe { libc::kill(self.pid, signal) };
        ensure!(sent == 0, "kill: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Stops it, and waits until it has stopped.
    pub fn stop(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)?;
        let mut status = 0;
        // SAFETY: our child, not waited for yet.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WUNTRACED) };
        ensure!(waited == self.pid && libc::WIFSTOPPED(status), "it has not stopped: {status:#x}");
        Ok(())
    }

    /// Waits for the child's end; its failure, or not ending, is an error.
    pub fn finish(mut self) -> Result<()> {
        let mut failure = String::new();
        self.line.read_to_string(&mut failure).context("the child does not end")?;
        let mut status = 0;
        // SAFETY: our child, which has closed its end of the line and so is ending.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        self.reaped = true;
        ensure!(waited == self.pid, "waitpid: {}", std::io::Error::last_os_error());
        ensure!(failure.is_empty() && status == 0, "in the child (status {status:#x}): {failure}");
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // SAFETY: our child, not waited for yet, so the id is its own.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

impl Parent {
    /// Sends numbers.
    pub fn send(&mut self, numbers: &[u64]) -> Result<()> {
        send(&mut self.0, numbers)
    }

    /// Sleeps until as many numbers have come.
    pub fn receive<const N: usize>(&mut self) -> Result<[u64; N]> {
        receive(&mut self.0).context("from the parent")
    }
}

fn send(line: &mut UnixStream, numbers: &[u64]) -> Result<()> {
    for number in numbers {
        line.write_all(&number.to_ne_bytes())?;
    }
    Ok(())
}

fn receive<const N: usize>(line: &mut UnixStream) -> Result<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let mut bytes = [0; 8];
        line.read_exact(&mut bytes)?;
        *number = u64::from_ne_bytes(bytes);
    }
    Ok(numbers)
}

/// A limit for calls that might hang: `call` runs in a thread, which is left behind if it does not end.
pub fn does_not_hang<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(call()));
    receiver.recv_timeout(PATIENCE).with_context(|| format!("{what} hangs"))
}
