//! The harness itself: a check that cannot fail would hide what it looks for.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Result, ensure};
use urxe_tests::{Leftovers, TIMEOUT, World, in_world, is_inside, port_owner, wait_for_listener, wait_until};

/// Holds what a urxe process holds, for as long as it runs.
const HOLDER: &str = "import socket, os, time\n\
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 4791))\n\
    v = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); v.bind(('::1', 4791))\n\
    n = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); n.bind('\\0urxe/1/owner/127.0.0.1'); n.listen()\n\
    open(os.environ['TMPDIR'] + '/left', 'w'); open('/dev/shm/left', 'w')\n\
    time.sleep(600)";

#[test]
fn leftovers_and_owners_are_found() -> Result<()> {
    let world = World::bare()?;
    let host = world.host();
    ensure!(Leftovers::on(host)?.is_empty(), "not empty to begin with: {}", Leftovers::on(host)?);
    let holder = host.spawn("python3", &["-c", HOLDER])?;
    wait_until("all is held", || {
        let left = Leftovers::on(host)?;
        Ok(left.names.len() == 1 && left.sockets.len() == 2 && left.files.len() == 2)
    })?;
    ensure!(port_owner(host, "127.0.0.1")? == holder.pid());
    drop(holder);
    let left = Leftovers::on(host)?;
    ensure!(left.names.is_empty() && left.sockets.is_empty() && left.files.len() == 2, "after its death: {left}");
    Ok(())
}

/// Accepts one TCP connection on port 7000, over IPv4 or IPv6.
const LISTENER: &str =
    "import socket; socket.create_server(('', 7000), family=socket.AF_INET6, dualstack_ipv6=True).accept()";

/// Connects to port 7000 of the address that it is given.
const CONNECTOR: &str = "import socket, sys; socket.create_connection((sys.argv[1], 7000), timeout=120)";

#[test]
fn hosts_reach_each_other_and_nobody_else() -> Result<()> {
    let world = World::new()?;
    let (a, b) = (world.host(), &world.add_host()?);
    let unreachable = a.try_run("python3", &["-c", CONNECTOR, "10.77.0.2"])?.failure()?;
    ensure!(unreachable.stderr.contains("Network is unreachable"), "before they are linked: {unreachable}");
    world.link(a, b, 1500)?;
    for address in ["10.77.0.2", "fd77::2"] {
        let listener = wait_for_listener(b, b.spawn("python3", &["-c", LISTENER])?, 7000)?;
        a.run("python3", &["-c", CONNECTOR, address])?;
        listener.finish(TIMEOUT)?.success()?;
    }
    let routes = a.run("ip", &["route", "show", "default"])?;
    ensure!(routes.stdout.is_empty(), "a way out of the world: {routes}");
    Ok(())
}

#[test]
fn a_world_ends_with_its_programs() -> Result<()> {
    let world = World::bare()?;
    let sleeper = world.host().spawn("sleep", &["600"])?;
    let proc = format!("/proc/{}", sleeper.pid());
    ensure!(std::fs::exists(&proc)?);
    drop((sleeper, world));
    ensure!(!std::fs::exists(&proc)?, "{proc} outlived its world");
    Ok(())
}

#[test]
fn a_test_inside_has_the_world_around_it() {
    in_world(|| {
        // Twice the same name would fail on the machine's own network, or while another test has it.
        let _name = UnixListener::bind_addr(&SocketAddr::from_abstract_name("urxe/harness-test")?)?;
        ensure!(std::env::var("SYSFS_PATH")? == "/var/lib/urxe/sysfs");
        ensure!(std::fs::exists("/dev/infiniband/uverbs0")?);
        let links = std::fs::read_dir("/sys/class/net")?.count();
        ensure!(links == 1, "{links} interfaces, not only lo");
        Ok(())
    });
}

#[test]
fn a_failure_inside_is_a_failure_outside() {
    let outcome = std::panic::catch_unwind(|| in_world(|| anyhow::bail!("deliberate")));
    match outcome {
        Err(panic) if is_inside() => std::panic::resume_unwind(panic),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(message.contains("deliberate"), "the reason is lost: {message}");
        }
        Ok(()) => panic!("a failure was taken for a success"),
    }
}

/// `scripts/under-load` ends as its command does, and leaves none of its spinners behind.
#[test]
fn a_load_ends_with_its_command() -> Result<()> {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/under-load");
    // Its children: the spinners, and the shell itself.
    let ended = std::process::Command::new(script)
        .args(["--spinners", "3", "--seed", "1", "sh", "-c", "cat /proc/$PPID/task/$PPID/children; exit 7"])
        .output()?;
    let said = String::from_utf8(ended.stdout)?;
    let children: Vec<&str> = said.split_whitespace().collect();
    ensure!(ended.status.code() == Some(7) && children.len() == 4, "{:?}: {said}", ended.status);
    for child in children {
        let command = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        ensure!(!command.contains("under-load"), "{child} is left: {command}");
    }
    Ok(())
}

/// `run` of `scripts/test-binaries`, with a shell in the place of a test program. Prints the status and the shell's output.
const HANGS: &str = "import sys
from importlib import machinery, util
loader = machinery.SourceFileLoader('test_binaries', sys.argv[1])
module = util.module_from_spec(util.spec_from_loader(loader.name, loader))
sys.dont_write_bytecode = True
loader.exec_module(module)
script, said = 'sleep 100000 & echo $!; echo running; wait', ''
# On a busy machine the shell says nothing within a second.
for limit in (1, 10, 100):
    if 'running' not in said: name, status, said, _ = module.run('name', '/bin/sh', '/', ['-c', script], limit)
print(status)
print(said)";

/// `scripts/test-binaries` ends a program that hangs, and what that has started.
#[test]
fn a_test_program_that_hangs_is_ended() -> Result<()> {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/test-binaries");
    let ended = std::process::Command::new("python3").args(["-c", HANGS]).arg(script).output()?;
    let said = String::from_utf8(ended.stdout)?;
    let lines: Vec<&str> = said.lines().collect();
    let [status, child, "running", ..] = lines[..] else {
        anyhow::bail!("{said}{}", String::from_utf8_lossy(&ended.stderr))
    };
    ensure!(status.starts_with("no end within "), "{status}");
    wait_until("what it has started has ended", || {
        let command = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        Ok(!command.contains("sleep"))
    })
}
