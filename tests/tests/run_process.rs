//! `urxe run` gets out of the way: status, signals, descriptors, files, and the options that it takes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use urxe_tests::{Finished, Launcher, TIMEOUT, copy_program, wait_until};

#[test]
fn exit_statuses() -> Result<()> {
    let launcher = Launcher::new()?;
    for (words, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["/no/such/program"], 127),
        (&["no-such-program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let ended = launcher.try_run(&[], words)?;
        ensure!(ended.status.code() == Some(status), "{ended}");
    }
    let ended = launcher.try_run(&[], &["sh", "-c", "kill -TERM $$"])?;
    ensure!(ended.status.signal() == Some(libc::SIGTERM), "{ended}");
    // Its own failures can be told from a program's.
    let ended = launcher.try_run(&["--netdev", "nope0"], &["true"])?;
    ensure!(ended.status.code() == Some(125) && ended.stderr.contains("nope0"), "{ended}");
    ensure!(ended.stderr.lines().count() == 1, "{ended}");
    Ok(())
}

/// For how long a process that is started now lives, without the time in which others had the processor that it wanted.
fn lives(mut command: std::process::Command) -> Result<Duration> {
    let start = Instant::now();
    let mut child = command.spawn()?;
    let pid = child.id();
    // SAFETY: room for the answer. The child has not been waited for, and still is not afterwards.
    let ended = unsafe {
        let mut info = std::mem::zeroed::<libc::siginfo_t>();
        libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT)
    };
    let lived = start.elapsed();
    // Nanoseconds that it ran, and that it waited for a processor (proc_pid_schedstat, Documentation/scheduler/sched-stats.rst).
    let schedstat = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let waited = schedstat.split_whitespace().nth(1).and_then(|waited| waited.parse().ok()).unwrap_or_default();
    ensure!(ended == 0 && child.wait()?.success(), "it failed");
    Ok(lived.saturating_sub(Duration::from_nanos(waited)))
}

/// Less than 50 ms. What it waits for may wait for a processor as well: it is tried until one attempt is.
#[test]
fn the_start_is_quick() -> Result<()> {
    const LIMIT: Duration = Duration::from_millis(50);
    let launcher = Launcher::new()?;
    let (mut best, begin) = (Duration::MAX, Instant::now());
    while begin.elapsed() < TIMEOUT {
        best = best.min(lives(launcher.command(&[], &["true"])?)?);
        if best < LIMIT {
            return Ok(());
        }
    }
    anyhow::bail!("`urxe run -- true` takes {best:?}")
}

/// Inherited properties of a process, besides the two variables and the options.
#[test]
fn a_process_like_any_other() -> Result<()> {
    let launcher = Launcher::new()?;
    let script = "echo $$; grep -E '^(Sig(Blk|Ign|Cgt)|PPid|Threads|CapEff|NoNewPrivs)' /proc/self/status
        for fd in /proc/$$/fd/*; do echo ${fd##*/}; done; umask; pwd; ps -o pgid= -o sid= -p $$
        env | grep -v -e ^LD_PRELOAD= -e ^URXE_RUN= -e ^URXE_EXPLAIN= -e ^_= | sort; ulimit -a";
    let run = |command: std::process::Command| -> Result<Vec<String>> {
        let process = launcher.host().start(command)?;
        let pid = process.pid().to_string();
        let finished = process.finish(TIMEOUT)?.success()?;
        // Numbers of processes differ from one to the next; which is meant, is compared. A limit may be as large.
        let words = |line: &str| {
            let has_pids = line == pid || line.starts_with("PPid:");
            let own = |word: &str| if has_pids && word == pid { "PID".to_owned() } else { word.to_owned() };
            line.split_whitespace().map(own).collect::<Vec<_>>().join(" ")
        };
        Ok(finished.stdout.lines().map(words).collect())
    };
    let plain = run(launcher.plain(&["sh", "-c", script]))?;
    let launched = run(launcher.command(&[], &["sh", "-c", script])?)?;
    let differences: Vec<_> = plain.iter().zip(&launched).filter(|(plain, launched)| plain != launched).collect();
    ensure!(differences.is_empty() && plain.len() == launched.len(), "without and with: {differences:#?}");
    ensure!(plain.first().is_some_and(|pid| pid == "PID"), "not the process that was started: {plain:?}");
    Ok(())
}

#[test]
fn an_ignored_sigpipe_stays_ignored() -> Result<()> {
    let launcher = Launcher::new()?;
    let urxe = launcher.urxe();
    let script = "trap '' PIPE; exec \"$0\" run -- grep SigIgn /proc/self/status";
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let said = launcher.host().start(launcher.plain(&["sh", "-c", script, urxe]))?.finish(TIMEOUT)?.success()?;
    let mask = said.stdout.split_whitespace().last().context("no mask")?;
    let mask = u64::from_str_radix(mask, 16)?;
    ensure!(mask >> (libc::SIGPIPE - 1) & 1 == 1, "{said}");
    Ok(())
}

/// Only the program holds the pipes: their readers see the end when it ends.
#[test]
fn standard_input_and_output() -> Result<()> {
    let launcher = Launcher::new()?;
    let mut command = launcher.command(&[], &["cat"])?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("no pipe")?;
    input.write_all(b"through\0and through")?;
    drop(input);
    let output = child.wait_with_output()?;
    ensure!(output.status.success() && output.stdout == b"through\0and through");
    Ok(())
}

/// Names in the folders that temporary files go to.
fn traces(launcher: &Launcher) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for dir in [launcher.tmp(), launcher.host().root().join("dev/shm")] {
        for entry in fs::read_dir(dir)? {
            names.insert(entry?.path().display().to_string());
        }
    }
    Ok(names)
}

fn wait_until_clean(launcher: &Launcher) -> Result<()> {
    wait_until("the folder is gone", || Ok(traces(launcher)?.is_empty()))
}

#[test]
fn no_trace_is_left() -> Result<()> {
    let launcher = Launcher::new()?;
    for words in [&["true"][..], &["ibv_devinfo"], &["/no/such/program"], &["sh", "-c", "kill -KILL $$"]] {
        launcher.try_run(&[], words)?;
        wait_until_clean(&launcher)?;
    }
    Ok(())
}

/// The folder stays for as long as somebody needs it, and no longer.
#[test]
fn children_that_live_on_keep_their_devices() -> Result<()> {
    let launcher = Launcher::new()?;
    let mark = launcher.tmp().join("mark");
    let script = format!(
        "(until test -e {0}; do sleep 0.05; done; ibv_devices >{0}.out 2>&1; mv {0}.out {0}.done) >/dev/null 2>&1 &",
        mark.display()
    );
    launcher.sh(&script)?;
    let folders = traces(&launcher)?;
    ensure!(folders.len() == 1, "{folders:?}");
    fs::write(&mark, "")?;
    let done = mark.with_extension("done");
    wait_until("the child is done", || Ok(done.exists()))?;
    let listed = fs::read_to_string(&done)?;
    ensure!(listed.contains("urxe0"), "{listed}");
    fs::remove_file(&done)?;
    fs::remove_file(&mark)?;
    wait_until_clean(&launcher)
}

/// A daemon that writes its title over its environment (postgres, nginx, sendmail), closes every descriptor and lives on
/// keeps its devices.
#[test]
fn a_daemon_without_its_environment_keeps_its_devices() -> Result<()> {
    let launcher = Launcher::new()?;
    let script = "import ctypes, os, sys, time
mark = os.environ['TMPDIR'] + '/mark'
if os.fork(): sys.exit(0)
os.setsid()
# Fields 50 and 51: where its environment lies (proc_pid_stat(5)).
stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
start, end = int(stat[47]), int(stat[48])
ctypes.memset(start, 0, end - start)
assert b'URXE' not in open('/proc/self/environ', 'rb').read()
os.closerange(0, 1 << 16)
if os.fork(): os._exit(0)
open(mark + '.ready', 'w').close()
while not os.path.exists(mark): time.sleep(0.02)
with open(mark + '.out', 'w') as out:
    try: out.write(' '.join(os.listdir('/sys/class/infiniband')))
    except OSError as error: out.write(repr(error))
os.rename(mark + '.out', mark + '.done')";
    launcher.python(script)?;
    let file = |name: &str| launcher.tmp().join(name);
    wait_until("the daemon runs", || Ok(file("mark.ready").exists()))?;
    // A second run's reaper removes folders that nobody uses: it is no other's, and its own goes.
    launcher.run(&["true"])?;
    let folders = || -> Result<usize> {
        Ok(traces(&launcher)?
            .iter()
            .filter(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("urxe-")))
            .count())
    };
    wait_until("one folder is left", || Ok(folders()? <= 1))?;
    fs::write(file("mark"), "")?;
    wait_until("the daemon is done", || Ok(file("mark.done").exists()))?;
    let listed = fs::read_to_string(file("mark.done"))?;
    ensure!(listed == "urxe0", "{listed}");
    for name in ["mark", "mark.ready", "mark.done"] {
        fs::remove_file(file(name))?;
    }
    wait_until_clean(&launcher)
}

/// Janitors of `launcher`'s folders: process numbers.
fn reapers(launcher: &Launcher) -> Result<Vec<i32>> {
    let folders = [launcher.tmp().display().to_string(), "/dev/shm".to_owned()];
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = words.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        let same_world = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok() == launcher_namespace(launcher);
        let ours = words.get(2).is_some_and(|folder| folders.iter().any(|base| Path::new(&**folder).starts_with(base)));
        if words.get(1).is_some_and(|word| word == "reaper") && ours && same_world {
            found.push(pid);
        }
    }
    Ok(found)
}

fn launcher_namespace(launcher: &Launcher) -> Option<std::path::PathBuf> {
    fs::read_link(launcher.host().root().parent()?.join("ns/mnt")).ok()
}

/// A reaper that is killed leaves its folder to the next one.
#[test]
fn a_killed_reaper() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = launcher.host().start(launcher.command(&[], &["sleep", "1000"])?)?;
    let mut found = Vec::new();
    wait_until("the reaper watches", || {
        found = reapers(&launcher)?;
        Ok(!found.is_empty())
    })?;
    for pid in found {
        // SAFETY: no pointers. The process is a reaper of this test's own world.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    program.signal(libc::SIGKILL)?;
    program.finish(TIMEOUT)?;
    ensure!(traces(&launcher)?.len() == 1, "somebody else removed it");
    launcher.run(&["true"])?;
    wait_until_clean(&launcher)
}

#[test]
fn other_preloaded_libraries_and_paths_with_spaces() -> Result<()> {
    let launcher = Launcher::new()?;
    // The launcher's own folder has a space in its name, at which the loader would split.
    ensure!(launcher.urxe().display().to_string().contains(' '));
    let mut command = launcher.command(&[], &["sh", "-c", "echo $LD_PRELOAD; ibv_devices"])?;
    command.env("LD_PRELOAD", "libm.so.6");
    let said = launcher.host().start(command)?.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout.contains("liburxe.so:libm.so.6\n") && said.stdout.contains("urxe0"), "{said}");
    ensure!(said.stderr.is_empty(), "{said}");
    Ok(())
}

/// Children that are started with another environment have the devices, as with a card.
#[test]
fn children_get_lost_variables_back() -> Result<()> {
    let launcher = Launcher::new()?;
    for script in [
        "env -i /usr/bin/ibv_devices",
        "env LD_PRELOAD=libm.so.6 ibv_devices",
        "env LD_PRELOAD= ibv_devices",
        "env -u LD_PRELOAD -u URXE_RUN sh -c ibv_devices",
        "unset LD_PRELOAD; exec ibv_devices",
        "/usr/bin/python3 -c 'import subprocess; subprocess.run([\"/usr/bin/ibv_devices\"], env={}, check=True)'",
        "/usr/bin/python3 -c 'import os; os.waitpid(os.posix_spawn(\"/usr/bin/ibv_devices\", [\"a\"], {}), 0)'",
        "/usr/bin/python3 -c 'import os; os.execve(os.open(\"/usr/bin/ibv_devices\", os.O_RDONLY), [\"a\"], {})'",
        "/usr/bin/python3 -c 'import ctypes; ctypes.CDLL(None).syscall(59 if \"x86\" in __import__(\"platform\").machine()
            else 221, b\"/usr/bin/ibv_devices\", (ctypes.c_char_p * 2)(b\"a\"), (ctypes.c_char_p * 1)())'",
    ] {
        let listed = launcher.sh(script).with_context(|| script.to_owned())?;
        ensure!(listed.stdout.contains("urxe0") && listed.stderr.is_empty(), "{listed}");
    }
    // Options come back with them, and libraries of the program's own stay.
    let told = launcher.try_run(&["--mtu", "1024"], &["env", "-i", "/usr/bin/ibv_devinfo", "-v"])?.success()?;
    ensure!(told.stdout.contains("active_mtu:\t\t1024"), "{told}");
    let told = launcher.sh("env LD_PRELOAD=libm.so.6 sh -c 'echo $LD_PRELOAD'")?;
    ensure!(told.stdout.ends_with("liburxe.so:libm.so.6\n"), "{told}");
    // Who wants none has none.
    let none = launcher.sh("! env URXE_RUN= ibv_devices; env -i URXE_RUN= /usr/bin/env")?;
    ensure!(none.stdout == "URXE_RUN=\n", "{none}");
    // What cannot be given back is said.
    let script = "import os; os.execve('/usr/bin/true', ['true'], {f'A{i}': '' for i in range(2000)})";
    let said = launcher.python(script)?;
    ensure!(
        said.stderr.lines().count() == 1 && said.stderr.starts_with("urxe: warning: a program is started"),
        "{said}"
    );
    // libc starts the shell of system(3) and popen(3) by itself, with the program's environment.
    let shells = "import ctypes, os
libc = ctypes.CDLL(None)
libc.system(None)
libc.system(b'ibv_devices | grep -c urxe0')
os.unsetenv('LD_PRELOAD')
libc.system(b'true')
libc.popen(b'true', b'r')";
    let said = launcher.python(shells)?;
    let is_warned = said.stderr.starts_with("urxe: warning: system(3) or popen(3) starts a program without");
    ensure!(said.stdout == "1\n" && said.stderr.lines().count() == 1 && is_warned, "{said}");
    // A thread may be cancelled while its shell runs. libc kills the shell alone: what that had started would keep the folder.
    let cancelled = launcher.world().dir().join("cancelled");
    let source = "#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static void *run(void *none) { system(\"exec sleep 100\"); return none; }
int main(void) {
    pthread_t thread; void *result;
    pthread_create(&thread, NULL, run, NULL);
    sleep(1);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    return result != PTHREAD_CANCELED;
}";
    fs::write(cancelled.with_extension("c"), source)?;
    let (program, file) = (cancelled.display().to_string(), cancelled.with_extension("c").display().to_string());
    launcher.host().run("gcc", &["-w", "-pthread", "-o", &program, &file])?;
    launcher.run(&[&program])?;
    // A file or a connection of the program's own may have standard error's number, and a client may be there from the start.
    let other = "import os, socket, sys
mine, clients = socket.socketpair()
file = os.open(os.environ['TMPDIR'], os.O_RDWR | os.O_TMPFILE)
os.dup2(file if sys.argv[1] == 'file' else clients.fileno(), 2)
if os.fork() == 0:
    if sys.argv[1] == 'inherited':
        # As inetd(8) starts a server.
        os.dup2(2, 0)
        os.execv('/usr/bin/python3', ['python3', '-c', sys.argv[2]])
    exec(sys.argv[2])
os.wait(); os.close(2); clients.close()
print(os.fstat(file).st_size, mine.recv(99))";
    for way in ["file", "socket", "inherited"] {
        let said = launcher.run(&["/usr/bin/python3", "-c", other, way, script])?;
        ensure!(said.stdout == "0 b''\n" && said.stderr.is_empty(), "{way}: {said}");
    }
    wait_until_clean(&launcher)
}

#[test]
fn a_run_in_a_run() -> Result<()> {
    let launcher = Launcher::new()?;
    let urxe = launcher.urxe();
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let said = launcher.run(&[urxe, "run", "--device-name", "inner", "--", "ibv_devices"])?;
    ensure!(said.stdout.contains("inner") && !said.stdout.contains("urxe0"), "{said}");
    wait_until_clean(&launcher)
}

#[test]
fn options_variables_and_files_say_the_same() -> Result<()> {
    let launcher = Launcher::new()?;
    launcher.host().run("ip", &["address", "add", "127.0.0.9/8", "dev", "lo"])?;
    let file = launcher.tmp().join("urxe.toml");
    fs::write(&file, "device-name = \"first\"\nmtu = 1024\ngid = [\"127.0.0.9\", \"127.0.0.1\"]\n")?;
    let file = file.to_str().context("a path that is not UTF-8")?;
    let options = ["--device-name", "first", "--mtu", "1024", "--gid", "127.0.0.9,127.0.0.1"];
    let variables = [("URXE_DEVICE_NAME", "first"), ("URXE_MTU", "1024"), ("URXE_GID", "127.0.0.9,127.0.0.1")];
    let ways = [
        (&options[..], &[][..]),
        (&[], &variables),
        (&["--config", file], &[]),
        (&[], &[("URXE_CONFIG", file)]),
        // The command line wins over variables, variables over the file.
        (&["--device-name", "first"], &[("URXE_DEVICE_NAME", "second"), ("URXE_CONFIG", file)]),
    ];
    for (options, variables) in ways {
        let mut command = launcher.command(options, &["ibv_devinfo", "-v"])?;
        command.envs(variables.iter().copied());
        let told = launcher.host().start(command)?.finish(TIMEOUT)?.success()?;
        for wanted in [
            "hca_id:\tfirst\n",
            "active_mtu:\t\t1024",
            "GID[  1]:\t\t::ffff:127.0.0.9",
            "GID[  2]:\t\t::ffff:127.0.0.1",
        ] {
            ensure!(told.stdout.contains(wanted), "{options:?} {variables:?}: no {wanted:?}: {told}");
        }
    }
    for (options, said) in [
        (["--mtu", "1500"], "256, 512"),
        (["--gid", "127.0.0.8"], "lo has no such address"),
        (["--config", "/no/such/file"], "No such file"),
        (["--personality", "usb"], "`virtual`, `pci` and `mlx5`"),
    ] {
        let refused = launcher.try_run(&options, &["true"])?;
        ensure!(refused.status.code() == Some(125) && refused.stderr.contains(said), "{refused}");
    }
    let mut misspelt = launcher.host().command(launcher.urxe());
    misspelt.args(["run", "--netdv", "lo", "true", "--its-own"]);
    let refused = launcher.host().start(misspelt)?.finish(TIMEOUT)?;
    ensure!(refused.stderr.contains("'--netdv'") && refused.stderr.contains("--netdev"), "{refused}");
    ensure!(refused.status.code() == Some(125), "{refused}");
    // What follows the program is the program's, also without `--`.
    let mut plain = launcher.host().command(launcher.urxe());
    plain.args(["run", "echo", "--netdv"]);
    ensure!(launcher.host().start(plain)?.finish(TIMEOUT)?.success()?.stdout == "--netdv\n");
    Ok(())
}

/// Options that make no sense keep the program from being started, and are reported once.
#[test]
fn values_that_make_no_sense() -> Result<()> {
    let launcher = Launcher::new()?;
    for (options, said) in [
        (&["--explain", "maybe"][..], "--explain or URXE_EXPLAIN=maybe: expected 0, 1, json or failure"),
        (&["--strict=bogus"], "--strict or URXE_STRICT=bogus: expected 0, 1, backtrace"),
        (&["--quirks", "often"], "--quirks or URXE_QUIRKS=often: expected a seed"),
        (&["--pcap", "it", "--pcap-snaplen", "few"], "--pcap-snaplen or URXE_PCAP_SNAPLEN=few: expected a number"),
        (&["--pcap", "it", "--pcap-rotate", "often"], "--pcap-rotate or URXE_PCAP_ROTATE=often: expected SIZE"),
        (&["--pcap-snaplen", "96"], "--pcap-snaplen or URXE_PCAP_SNAPLEN=96: captures nothing by itself: --pcap"),
        (&["--pcap-rotate", "1M"], "--pcap-rotate or URXE_PCAP_ROTATE=1M: captures nothing by itself: --pcap"),
    ] {
        let refused = launcher.try_run(options, &["echo", "started"])?;
        ensure!(refused.status.code() == Some(125) && refused.stdout.is_empty(), "{refused}");
        ensure!(refused.stderr.starts_with(&format!("urxe: {said}")), "no {said:?}: {refused}");
        ensure!(refused.stderr.lines().count() == 1, "{refused}");
    }
    // The same from the environment.
    let mut command = launcher.command(&[], &["echo", "started"])?;
    command.env("URXE_STRICT", "bogus");
    let refused = launcher.host().start(command)?.finish(TIMEOUT)?;
    ensure!(refused.status.code() == Some(125) && refused.stdout.is_empty(), "{refused}");
    Ok(())
}

#[test]
fn two_devices() -> Result<()> {
    let launcher = Launcher::new()?;
    launcher.host().run("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"])?;
    launcher.host().run("ip", &["address", "add", "10.78.0.1/24", "dev", "v0"])?;
    for name in ["v0", "v1"] {
        launcher.host().run("ip", &["link", "set", name, "up"])?;
    }
    let told = launcher.try_run(&["--netdev", "lo,v0"], &["/usr/sbin/ibstat", "-l"])?.success()?;
    ensure!(told.stdout == "urxe0\nurxe1\n", "{told}");
    let told = launcher.try_run(&["--netdev", "lo,v0"], &["ibv_devinfo", "-v", "-d", "urxe1"])?.success()?;
    ensure!(told.stdout.contains("::ffff:10.78.0.1"), "{told}");
    Ok(())
}

#[test]
fn a_misspelt_variable_is_pointed_out() -> Result<()> {
    let launcher = Launcher::new()?;
    let mut command = launcher.command(&[], &["true"])?;
    command.env("URXE_NETDEW", "eth0").env("URXE_EXPLAIN", "0");
    let said = launcher.host().start(command)?.finish(TIMEOUT)?.success()?;
    ensure!(said.stderr == "urxe: warning: URXE_NETDEW means nothing here: is it URXE_NETDEV?\n", "{said}");
    Ok(())
}

/// Runs `script` with a `/dev/shm` of 64 KiB of its own.
fn with_small_shm(launcher: &Launcher, script: &str) -> Result<Finished> {
    let script = format!("mount -t tmpfs -o size=64k tmpfs /dev/shm\n{script}");
    let mut command = launcher.host().command("unshare");
    command.args(["--mount", "sh", "-ec", &script]).env("URXE", launcher.urxe()).env("TMPDIR", launcher.tmp());
    launcher.host().start(command)?.finish(TIMEOUT)
}

/// `/dev/shm` of a container is small, and may be full.
#[test]
fn a_full_shm_leaves_room_elsewhere() -> Result<()> {
    let launcher = Launcher::new()?;
    let said = with_small_shm(
        &launcher,
        "head -c 100000 /dev/zero >/dev/shm/full 2>/dev/null || true
        \"$URXE\" run -- sh -c 'cat /sys/class/infiniband/urxe0/node_type; case $URXE_RUN in $TMPDIR/*) echo there;; esac'",
    )?
    .success()?;
    ensure!(said.stdout == "1: CA\nthere\n", "{said}");
    // What was begun in the full one is gone.
    let said = with_small_shm(
        &launcher,
        "head -c 100000 /dev/zero >/dev/shm/full 2>/dev/null || true; \"$URXE\" run -- true; ls /dev/shm",
    )?
    .success()?;
    ensure!(said.stdout == "full\n", "{said}");
    Ok(())
}

/// A `/dev/shm` that is mounted below `urxe run` hides its folder: who asks for devices is told.
#[test]
fn a_hidden_folder_is_said_in_a_line() -> Result<()> {
    let launcher = Launcher::new()?;
    let script = "mount -t tmpfs tmpfs /dev/shm; ibv_devices || true; \"$URXE\" doctor --for run";
    // A path without spaces: the library is not in the folder then, and can say something.
    let urxe = launcher.tmp().join("urxe");
    copy_program(launcher.urxe(), &urxe)?;
    copy_program(launcher.urxe().with_file_name("liburxe.so"), urxe.with_file_name("liburxe.so"))?;
    let mut command = launcher.host().command(&urxe);
    command.args(["run", "--", "unshare", "--mount", "sh", "-ec", script]).env("URXE", &urxe);
    let said = launcher.host().start(command)?.finish(TIMEOUT)?.success()?;
    let lines: Vec<_> = said.stderr.lines().filter(|line| line.starts_with("urxe: no devices: /")).collect();
    ensure!(lines.len() == 1 && lines[0].contains("mounted anew"), "{said}");
    ensure!(said.stdout.contains("warning  programs started from here find no devices"), "{said}");
    Ok(())
}
