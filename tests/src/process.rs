//! Programs under test: output captured, killed when dropped, waited for with a deadline.

use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionbio};

/// Time that a program may take before a test gives up: far more than any needs on a slow machine that has twenty other things
/// to do, and longer than what a program itself waits for.
pub const TIMEOUT: Duration = Duration::from_secs(600);

/// Interval between two looks at a condition that is waited for.
pub(crate) const TICK: Duration = Duration::from_millis(5);
/// Time in which the children of a program that has ended write what they have to say.
const BRIEFLY: Duration = Duration::from_secs(2);

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// Output and exit status of a program.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The command line.
    pub name: String,
    /// Exit status.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Process {
    /// Starts `command` with nothing on its standard input.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let name = display(&command);
        // SAFETY: `prctl(PR_SET_PDEATHSIG)` is a plain system call and may run between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // The program dies with the test thread that started it, also when the test is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name} (missing? make setup)"))?;
        let stdout = Output::collect(child.stdout.take().context("no stdout pipe")?)?;
        let stderr = Output::collect(child.stderr.take().context("no stderr pipe")?)?;
        Ok(Self { name, child, stdout, stderr })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has not ended yet.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Whether each of its threads waits for something (proc_pid_stat(5): S).
    pub fn is_asleep(&self) -> Result<bool> {
        for task in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            // The name, in parentheses, may hold anything.
            // A thread that ends while they are listed is none that sleeps.
            let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { return Ok(false) };
            if !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S ")) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Standard output so far, unless the program buffers it.
    pub fn stdout_so_far(&self) -> String {
        self.stdout.text()
    }

    /// Standard error so far.
    pub fn stderr_so_far(&self) -> String {
        self.stderr.text()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: libc::c_int) -> Result<()> {
        let pid = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: `kill` takes no pointers; the child has not been reaped, so the id is still its own.
        let result = unsafe { libc::kill(pid, signal) };
        (result == 0).then_some(()).with_context(|| format!("kill {pid}: {}", std::io::Error::last_os_error()))
    }

    /// Waits for the end; an error after `timeout`, which holds what it printed until then.
    pub fn finish(mut self, timeout: Duration) -> Result<Finished> {
        let deadline = Instant::now() + timeout;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.child.kill()?;
                let finished = self.collect()?;
                bail!("still running after {timeout:?}, killed: {finished}");
            }
            sleep(TICK);
        }
        self.collect()
    }

    fn collect(mut self) -> Result<Finished> {
        let status = self.child.wait()?;
        Ok(Finished {
            name: std::mem::take(&mut self.name),
            status,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended and was reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Returns the output if the program succeeded; else an error with all that it printed.
    pub fn success(self) -> Result<Self> {
        if self.status.success() { Ok(self) } else { bail!("failed: {self}") }
    }

    /// Returns the output if the program ended by itself with an error; a success or a signal is an error here.
    pub fn failure(self) -> Result<Self> {
        if self.status.code().is_some_and(|code| code != 0) { Ok(self) } else { bail!("expected a failure: {self}") }
    }

    /// Describes the end of a process, or why it is not known.
    pub(crate) fn describe(end: &Result<Self>) -> String {
        match end {
            Ok(finished) => finished.to_string(),
            Err(error) => format!("{error:#}"),
        }
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, status, stdout, stderr } = self;
        let end = match status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => status.to_string(),
        };
        write!(f, "{name}: {end}\n--- stdout\n{stdout}--- stderr\n{stderr}---")
    }
}

/// The command line of `command`, for messages.
fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// A pipe being read by a thread, so that a talkative program never blocks.
#[derive(Debug)]
struct Output {
    pipe: Arc<Mutex<Pipe>>,
}

/// The end of a pipe that does not block, and the bytes that came out of it.
#[derive(Debug)]
struct Pipe {
    file: File,
    bytes: Vec<u8>,
    has_ended: bool,
}

impl Pipe {
    /// Takes all that is in the pipe.
    fn drain(&mut self) {
        let mut chunk = [0; 4096];
        loop {
            match self.file.read(&mut chunk) {
                Ok(len @ 1..) => self.bytes.extend_from_slice(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    self.has_ended = true;
                    return;
                }
            }
        }
    }
}

impl Output {
    fn collect(pipe: impl Into<OwnedFd>) -> Result<Self> {
        let file = File::from(pipe.into());
        ioctl_fionbio(&file, true)?;
        let readable = file.try_clone()?;
        let pipe = Arc::new(Mutex::new(Pipe { file, bytes: Vec::new(), has_ended: false }));
        let shared = Arc::clone(&pipe);
        std::thread::spawn(move || {
            loop {
                let mut waits = [PollFd::new(&readable, PollFlags::IN)];
                if poll(&mut waits, None).is_err_and(|error| error != Errno::INTR) {
                    return;
                }
                let mut pipe = shared.lock().unwrap_or_else(PoisonError::into_inner);
                pipe.drain();
                if pipe.has_ended {
                    return;
                }
            }
        });
        Ok(Self { pipe })
    }

    /// The pipe, and in it all that was written until now: the reader may not have had the processor since.
    fn drained(&self) -> MutexGuard<'_, Pipe> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        pipe.drain();
        pipe
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.drained().bytes).into_owned()
    }

    /// Returns all output of a program that has ended. The program's own children may hold the pipe open: what they write is waited for,
    /// but only briefly.
    fn finish(&self) -> String {
        let (mut before, mut deadline) = (0, Instant::now() + BRIEFLY);
        loop {
            let (len, has_ended) = {
                let pipe = self.drained();
                (pipe.bytes.len(), pipe.has_ended)
            };
            if has_ended || Instant::now() > deadline {
                return self.text();
            }
            if len > before {
                (before, deadline) = (len, Instant::now() + BRIEFLY);
            }
            sleep(TICK);
        }
    }
}
