//! `urxe install`, `env` and `uninstall`, on whole machines and below a prefix.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use anyhow::{Context, Result, ensure};
use urxe_tests::{PingPong, Snapshot, World, artifacts};

#[test]
fn the_machine_is_as_before_after_uninstall() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    let before = Snapshot::of_machine(host)?;

    host.run(&urxe, &["install"])?;
    let installed = before.difference(&Snapshot::of_machine(host)?);
    for path in ["/etc/libibverbs.d/urxe.driver", "liburxe-rdmav34.so", "liburxe-rdmav65.so", "/dev/infiniband/uverbs0"]
    {
        ensure!(installed.iter().any(|line| line.contains(path)), "{path} is not there: {installed:#?}");
    }
    // Over an older installation, as an upgrade does.
    host.run(&urxe, &["install"])?;
    host.run(&urxe, &["uninstall"])?;

    let left = before.difference(&Snapshot::of_machine(host)?);
    ensure!(left.is_empty(), "uninstall left traces: {left:#?}");
    Ok(())
}

#[test]
fn a_prefix_is_as_before_after_uninstall() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    let prefix = world.dir().join("new/prefix with space");
    let prefix_arg = prefix.to_str().context("a path that is not UTF-8")?;
    let before = (Snapshot::of_machine(host)?, Snapshot::of(world.dir())?);

    host.run(&urxe, &["install", "--prefix", prefix_arg])?;
    ensure!(prefix.join("lib/urxe/liburxe-rdmav34.so").is_file(), "no library below the prefix");
    let outside = before.0.difference(&Snapshot::of_machine(host)?);
    ensure!(outside.is_empty(), "a prefix installation wrote elsewhere: {outside:#?}");
    host.run(&urxe, &["uninstall", "--prefix", prefix_arg])?;

    let left = before.1.difference(&Snapshot::of(world.dir())?);
    ensure!(left.is_empty(), "uninstall left traces: {left:#?}");
    Ok(())
}

#[test]
fn env_prints_exports_and_nothing_else() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    let missing = host.try_run(&urxe, &["env"])?.failure()?;
    ensure!(missing.stdout.is_empty() && missing.stderr.contains("urxe install"), "{missing}");

    host.run(&urxe, &["install"])?;
    let env = host.run(&urxe, &["env"])?;
    ensure!(env.stdout == "export SYSFS_PATH=/var/lib/urxe/sysfs\n", "{env}");
    ensure!(env.stderr.is_empty(), "{env}");
    Ok(())
}

#[test]
fn a_prefix_installation_says_what_is_missing_outside() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    let prefix = world.dir().join("p");
    let prefix = prefix.to_str().context("a path that is not UTF-8")?;
    let install = host.run(&urxe, &["install", "--prefix", prefix])?;
    ensure!(install.stderr.contains("/dev/infiniband/uverbs0 is missing"), "{install}");
    let env = host.run(&urxe, &["env", "--prefix", prefix])?;
    ensure!(env.stdout.contains(&format!("export IBV_DRIVERS={prefix}/lib/urxe/liburxe\n")), "{env}");
    ensure!(env.stderr.contains("/dev/infiniband/uverbs0 is missing"), "{env}");
    Ok(())
}

#[test]
fn foreign_files_are_named_and_kept() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    host.run("mkdir", &["/dev/infiniband"])?;
    host.run("ln", &["-s", "/dev/zero", "/dev/infiniband/uverbs0"])?;
    let before = Snapshot::of_machine(host)?;

    let refused = host.try_run(&urxe, &["install"])?.failure()?;

    ensure!(refused.stderr.contains("/dev/infiniband/uverbs0 exists and urxe did not create it"), "{refused}");
    ensure!(refused.stderr.lines().count() == 1, "not one line: {refused}");
    let changed = before.difference(&Snapshot::of_machine(host)?);
    ensure!(changed.is_empty(), "a refused installation changed something: {changed:#?}");
    Ok(())
}

#[test]
fn the_two_files_work_from_any_folder() -> Result<()> {
    let world = World::bare()?;
    let host = world.host();
    let elsewhere = world.dir().join("elsewhere");
    fs::create_dir(&elsewhere)?;
    let urxe = elsewhere.join("urxe");
    fs::copy(artifacts::urxe()?, &urxe)?;

    let alone = host.try_run(&urxe, &["install"])?.failure()?;
    ensure!(alone.stderr.contains(&format!("{} is missing", elsewhere.join("liburxe.so").display())), "{alone}");
    ensure!(alone.stderr.lines().count() == 1, "not one line: {alone}");

    fs::copy(artifacts::bin_dir()?.join("liburxe.so"), elsewhere.join("liburxe.so"))?;
    host.run(&urxe, &["install"])?;
    host.set_env("SYSFS_PATH", "/var/lib/urxe/sysfs");
    let devices = host.run("ibv_devices", &[])?;
    ensure!(devices.stdout.contains("urxe0"), "{devices}");
    Ok(())
}

#[test]
fn without_root_one_line_says_what_to_do() -> Result<()> {
    let world = World::bare()?;
    // The repository and the target folder may be closed to others.
    let dir = tempfile::Builder::new().prefix("unprivileged-").tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let urxe = dir.path().join("urxe");
    fs::copy(artifacts::urxe()?, &urxe)?;
    fs::copy(artifacts::bin_dir()?.join("liburxe.so"), dir.path().join("liburxe.so"))?;
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    // SAFETY: `geteuid` has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    // In a user namespace with root alone mapped there is no other user to become, but nobody.
    let as_other: &[&str] =
        if root { &["setpriv", "--reuid=1", "--regid=1", "--clear-groups"] } else { &["unshare", "-U"] };
    let args = [&as_other[1..], &[urxe, "install"]].concat();
    let refused = world.host().try_run(as_other[0], &args)?.failure()?;
    ensure!(refused.stderr.contains("sudo") && refused.stderr.contains("--prefix"), "{refused}");
    ensure!(refused.stderr.lines().count() == 1, "not one line: {refused}");
    Ok(())
}

#[test]
fn an_upgrade_under_a_running_program() -> Result<()> {
    let world = World::bare()?;
    let (host, new) = (world.host(), artifacts::urxe()?);
    // Another version, as far as files go: the loader does not look behind the last section.
    let old = world.dir().join("old");
    fs::create_dir(&old)?;
    for name in ["urxe", "liburxe.so"] {
        fs::copy(artifacts::bin_dir()?.join(name), old.join(name))?;
        fs::OpenOptions::new().append(true).open(old.join(name))?.write_all(b"an older one")?;
    }
    let before = Snapshot::of_machine(host)?;
    host.run(old.join("urxe"), &["install"])?;
    host.set_env("SYSFS_PATH", "/var/lib/urxe/sysfs");

    let running = PingPong { iters: 20_000, ..PingPong::default() }.start(host, host)?;
    host.run(&new, &["install"])?;
    let driver = host.run("sh", &["-c", "find /usr/lib* -name liburxe-rdmav34.so"])?;
    let installed = host.root().join(driver.stdout.trim().trim_start_matches('/'));
    let size = fs::metadata(artifacts::bin_dir()?.join("liburxe.so"))?.size();
    ensure!(fs::metadata(&installed)?.size() == size, "{} is not the new one", installed.display());
    PingPong::default().run(host, host)?;
    running.finish()?;

    host.run(&new, &["uninstall"])?;
    let left = before.difference(&Snapshot::of_machine(host)?);
    ensure!(left.is_empty(), "uninstall left traces: {left:#?}");
    Ok(())
}

#[test]
fn what_is_gone_already_does_not_stop_an_uninstallation() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    let before = Snapshot::of_machine(host)?;
    host.run(&urxe, &["install"])?;
    // As after an installation that was interrupted, and after a boot, which empties /dev.
    host.run("rm", &["-r", "/etc/libibverbs.d/urxe.driver", "/var/lib/urxe/sysfs/class/misc", "/dev/infiniband"])?;
    host.run(&urxe, &["uninstall"])?;
    let left = before.difference(&Snapshot::of_machine(host)?);
    ensure!(left.is_empty(), "uninstall left traces: {left:#?}");
    Ok(())
}

#[test]
fn folders_that_others_use_meanwhile_stay() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    let before = Snapshot::of_machine(host)?;
    host.run(&urxe, &["install"])?;
    host.run("touch", &["/dev/infiniband/issm0"])?;
    host.run(&urxe, &["uninstall"])?;
    let left = before.difference(&Snapshot::of_machine(host)?);
    let theirs = |line: &String| line.contains("/dev/infiniband");
    ensure!(left.len() == 2 && left.iter().all(theirs), "not their two: {left:#?}");
    Ok(())
}
