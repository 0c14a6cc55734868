//! The folder of `urxe run` belongs to its user: other users, below the same `urxe run` or elsewhere on the machine, change
//! nothing in it, and do not keep it from being removed.
//!
//! Run by `make test` where it may. The parts that need no second user are tested in `diag/status/src/final_counters.rs` and
//! `cli/src/run`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use urxe_tests::{Finished, Host, Launcher, Process, TIMEOUT, wait_until};

/// Becomes another user than root, in a shell's words.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --";

/// `urxe run` by root.
struct Root {
    launcher: Launcher,
}

impl Root {
    fn new() -> Result<Self> {
        let launcher = Launcher::new()?;
        // As it is on every machine.
        fs::set_permissions(shm(launcher.host()), std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
        Ok(Self { launcher })
    }

    fn host(&self) -> &Host {
        self.launcher.host()
    }

    fn start(&self, script: &str) -> Result<Process> {
        let mut command = self.host().command(self.launcher.urxe());
        command.args(["run", "--", "sh", "-ec", script]).env("NOBODY", AS_NOBODY).env("TMP", self.launcher.tmp());
        self.host().start(command)
    }

    fn run(&self, script: &str) -> Result<Finished> {
        self.start(script)?.finish(TIMEOUT)?.success()
    }

    fn folders(&self) -> Result<Vec<PathBuf>> {
        fs::read_dir(shm(self.host()))?.map(|entry| Ok(entry?.path())).collect()
    }

    fn wait_until_clean(&self) -> Result<()> {
        wait_until("the folder is gone", || Ok(self.folders()?.is_empty()))
    }
}

fn shm(host: &Host) -> PathBuf {
    host.root().join("dev/shm")
}

/// A device that goes adds its counters to a file, and whoever opens a counter reads it: neither goes where another user
/// of the same run leads it.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn links_and_pipes_of_others_are_not_followed() -> Result<()> {
    let root = Root::new()?;
    let victim = root.launcher.tmp().join("victim");
    for trap in ["ln -s $TMP/victim", "mkfifo", "ln $TMP/victim", "mkdir"] {
        fs::write(&victim, "precious")?;
        let said = root.run(&format!(
            "umask 0
            file=urxe0@$(stat -Lc %i /proc/self/ns/net)
            for folder in $(find \"$URXE_RUN\" -name counted); do
                $NOBODY {trap} $folder/$file 2>/dev/null || echo refused
            done
            ibv_devinfo -d urxe0 >/dev/null
            cat /sys/class/infiniband/urxe0/ports/1/counters/port_xmit_packets"
        ))?;
        ensure!(fs::read_to_string(&victim)? == "precious", "{trap}: it was written to");
        ensure!(said.stdout == "refused\n0\n", "{trap}: {said}");
        root.wait_until_clean()?;
    }
    Ok(())
}

/// Permissions hold for every umask of root's shell.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn others_can_write_nowhere_and_clutter_nothing() -> Result<()> {
    let root = Root::new()?;
    let urxe = root.launcher.urxe();
    let script = format!(
        "umask 0; exec '{}' run -- sh -ec '
            {AS_NOBODY} find \"$URXE_RUN\" \"$URXE_RUN/..\" -writable ! -type l ! -type c 2>/dev/null || true
            for folder in $(find \"$URXE_RUN\" \"$URXE_RUN/..\" -maxdepth 1 -type d); do
                {AS_NOBODY} sh -c \"mkdir $folder/x && touch $folder/x/y && chmod 700 $folder/x\" 2>/dev/null || true
            done'",
        urxe.display()
    );
    let said = root.host().run("sh", &["-c", &script])?;
    ensure!(said.stdout.is_empty(), "{said}");
    root.wait_until_clean()
}

/// Another user may know the folder's name, which `/dev/shm` shows, and may not keep it from being removed by that.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn strangers_do_not_keep_the_folder_of_a_run() -> Result<()> {
    let root = Root::new()?;
    let program = root.start("touch $TMP/ready; until test -e $TMP/go; do sleep 0.02; done")?;
    wait_until("the program runs", || Ok(root.launcher.tmp().join("ready").exists()))?;
    let [folder] = &root.folders()?[..] else { anyhow::bail!("not one folder") };
    let name = Path::new("/dev/shm").join(folder.file_name().context("a name")?);
    // All that can be found is locked, and named in the environment.
    let script = "import ctypes, os, fcntl, sys, time
found = [sys.argv[1]]
for folder, folders, files in os.walk(sys.argv[1]):
    for name in files:
        try: fcntl.flock(os.open(os.path.join(folder, name), os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError: pass
    found += [os.path.join(folder, name) for name in folders]
for path in found:
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        os.execve('/bin/sleep', ['sleep', '1000'], {'URXE_RUN': path})
print('waiting', flush=True)
time.sleep(1000)";
    let words = AS_NOBODY.split(' ').skip(1).chain(["/usr/bin/python3", "-c", script, name.to_str().context("UTF-8")?]);
    let stranger = root.host().spawn("setpriv", &words.collect::<Vec<_>>())?;
    wait_until("the stranger has done its worst", || Ok(stranger.stdout_so_far().contains("waiting")))?;
    fs::write(root.launcher.tmp().join("go"), "")?;
    program.finish(TIMEOUT)?.success()?;
    // The stranger is killed, and its children with it, when it is dropped.
    root.wait_until_clean()
}

/// Counters of root are there for the users that its programs become.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn users_below_root_see_what_root_has_counted() -> Result<()> {
    let root = Root::new()?;
    let port = root.host().next_port();
    let said = root.run(&format!(
        "ibv_rc_pingpong -d urxe0 -g 1 -p {port} >/dev/null & server=$!
        until ss -Hltn sport = {port} | grep -q .; do sleep 0.02; done
        ibv_rc_pingpong -d urxe0 -g 1 -p {port} 127.0.0.1 >/dev/null
        wait $server
        counter=/sys/class/infiniband/urxe0/ports/1/counters/port_xmit_packets
        cat $counter
        $NOBODY cat $counter"
    ))?;
    let seen: Vec<u64> = said.stdout.lines().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(seen.len() == 2 && seen[0] > 1000 && seen[0] == seen[1], "{said}");
    Ok(())
}
