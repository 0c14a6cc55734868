//! `urxe install`, `env` and `uninstall`, on whole machines and below a prefix.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use anyhow::{Context, Result, ensure};
use urxe_tests::{Host, PingPong, Snapshot, World, artifacts, copy_program, write_program};

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
    let (sysfs, drivers) = env.stdout.split_once('\n').context("one line")?;
    ensure!(sysfs == "export SYSFS_PATH=/var/lib/urxe/sysfs", "{env}");
    // For a libibverbs that looks for providers in another folder.
    let provider = drivers.strip_prefix("export IBV_DRIVERS=").and_then(|line| line.strip_suffix("/liburxe\n"));
    let provider = provider.filter(|dir| dir.ends_with("/libibverbs") && !dir.contains('\n'));
    ensure!(provider.is_some(), "{env}");
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

/// Mode, owner and group of a file on `host`, links followed.
fn mode_and_owner(host: &Host, path: &str) -> Result<String> {
    Ok(host.run("stat", &["-L", "-c", "%a %u:%g", path])?.stdout.trim().to_owned())
}

/// Gives the world a `/dev/null` of its own in the place of the machine's, which no test may change.
fn with_own_null_device(host: &Host) -> Result<()> {
    host.run("sh", &["-ec", "umount /dev/null; rm /dev/null; mknod /dev/null c 1 3; chmod 666 /dev/null"]).map(drop)
}

/// The group of RDMA users is given the devices, as manuals say.
#[test]
fn chmod_and_chown_of_a_device_leave_dev_null_alone() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    if !is_root() {
        host.run(&urxe, &["install"])?;
        let links = host.run("find", &["/dev/infiniband", "-type", "l", "-lname", "/dev/null"])?;
        ensure!(links.stdout.lines().count() == 5, "without CAP_MKNOD they are links: {links}");
        return Ok(());
    }
    with_own_null_device(host)?;
    let before = Snapshot::of_machine(host)?;
    host.run(&urxe, &["install"])?;
    host.set_env("SYSFS_PATH", "/var/lib/urxe/sysfs");
    let umask = host.run("sh", &["-c", "umask 077; exec \"$0\" install", urxe.to_str().context("not UTF-8")?])?;
    ensure!(umask.stderr.is_empty() && mode_and_owner(host, "/dev/infiniband/uverbs0")? == "666 0:0", "{umask}");

    host.run("sh", &["-ec", "chown root:1 /dev/infiniband/*; chmod 660 /dev/infiniband/*"])?;

    ensure!(mode_and_owner(host, "/dev/null")? == "666 0:0", "/dev/null: {}", mode_and_owner(host, "/dev/null")?);
    // They mean what they mean on a card: who is not of the group opens no device.
    let devinfo = |group: &str| {
        let regid = format!("--regid={group}");
        host.try_run("setpriv", &["--reuid=65534", &regid, "--clear-groups", "ibv_devinfo", "-d", "urxe0"])
    };
    devinfo("1")?.success()?;
    let refused = devinfo("65534")?.failure()?;
    ensure!(refused.stderr.contains("Failed to open device"), "{refused}");
    // An upgrade keeps what the administrator has set.
    host.run(&urxe, &["install"])?;
    for name in ["uverbs0", "rdma_cm"] {
        let now = mode_and_owner(host, &format!("/dev/infiniband/{name}"))?;
        ensure!(now == "660 0:1", "{name}: {now}");
    }

    host.run(&urxe, &["uninstall"])?;
    let left = before.difference(&Snapshot::of_machine(host)?);
    ensure!(left.is_empty(), "uninstall left traces: {left:#?}");
    Ok(())
}

/// Most containers may not make device nodes.
#[test]
fn without_cap_mknod_devices_are_links() -> Result<()> {
    let world = World::bare()?;
    let (host, urxe) = (world.host(), artifacts::urxe()?);
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let before = Snapshot::of_machine(host)?;
    let without = ["--bounding-set=-mknod", "--inh-caps=-mknod", "--", urxe];
    let run = |args: &[&str]| host.run("setpriv", &[&without, args].concat());
    let tmpfiles = || host.try_run("cat", &["/usr/lib/tmpfiles.d/urxe.conf"]);

    let installed = run(&["install"])?;
    ensure!(installed.stderr.is_empty(), "{installed}");
    let target = host.run("readlink", &["/dev/infiniband/uverbs0"])?;
    ensure!(target.stdout == "/dev/null\n", "{target}");
    ensure!(!tmpfiles()?.stdout.contains("\nc "), "{}", tmpfiles()?);
    host.set_env("SYSFS_PATH", "/var/lib/urxe/sysfs");
    let doctor = run(&["doctor"])?;
    ensure!(doctor.stdout.contains("warning  /dev/infiniband/uverbs0 is a link to /dev/null"), "{doctor}");

    if is_root() {
        // An installation that has links, as earlier ones did, gets nodes.
        host.run(urxe, &["install"])?;
        ensure!(
            host.run("stat", &["-c", "%F %t:%T", "/dev/infiniband/uverbs3"])?.stdout == "character special file 1:3\n"
        );
        let doctor = host.run(urxe, &["doctor"])?;
        ensure!(!doctor.stdout.contains("link to /dev/null"), "{doctor}");
        ensure!(tmpfiles()?.stdout.contains("\nc /dev/infiniband/uverbs0 0666 root root - 1:3\n"), "{}", tmpfiles()?);
    }

    host.run(urxe, &["uninstall"])?;
    let left = before.difference(&Snapshot::of_machine(host)?);
    ensure!(left.is_empty(), "uninstall left traces: {left:#?}");
    Ok(())
}

fn is_root() -> bool {
    // SAFETY: `geteuid` has no preconditions.
    unsafe { libc::geteuid() == 0 }
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
    copy_program(artifacts::urxe()?, &urxe)?;

    let alone = host.try_run(&urxe, &["install"])?.failure()?;
    ensure!(alone.stderr.contains(&format!("{} is missing", elsewhere.join("liburxe.so").display())), "{alone}");
    ensure!(alone.stderr.lines().count() == 1, "not one line: {alone}");

    copy_program(artifacts::bin_dir()?.join("liburxe.so"), elsewhere.join("liburxe.so"))?;
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
    copy_program(artifacts::urxe()?, &urxe)?;
    copy_program(artifacts::bin_dir()?.join("liburxe.so"), dir.path().join("liburxe.so"))?;
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let root = is_root();
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
        let bytes = fs::read(artifacts::bin_dir()?.join(name))?;
        write_program(old.join(name), [&bytes[..], b"an older one"].concat())?;
    }
    let before = Snapshot::of_machine(host)?;
    host.run(old.join("urxe"), &["install"])?;
    host.set_env("SYSFS_PATH", "/var/lib/urxe/sysfs");

    let running = PingPong { iters: 20_000, ..PingPong::default() }.start(host, host)?;
    host.run(&new, &["install"])?;
    // There may be folders that this user cannot look into.
    let library = host.try_run("sh", &["-c", "find /usr/lib* -path *libibverbs/liburxe.so"])?;
    let installed = host.root().join(library.stdout.trim().trim_start_matches('/'));
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
fn missing_files_do_not_stop_an_uninstallation() -> Result<()> {
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
