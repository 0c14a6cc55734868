//! `urxe cdi`: containers of podman and runc, whose images have a libibverbs and nothing of urxe's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Process, TIMEOUT, World, artifacts, copy_program, wait_until};

/// Starts podman where its sockets, locks and CDI files are nobody else's: `$0` is the specification.
const ALONE: &str = "set -e
mount -t tmpfs none /run; mount -t tmpfs none /dev/shm
mkdir /run/cdi; cp \"$0\" /run/cdi/urxe.json
exec podman --root /run/storage --runroot /run/podman --runtime runc --cgroup-manager cgroupfs run --rm \
    --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 \"$@\"";

/// Whether containers can be started by this user; fails where root has no podman or runc.
fn possible() -> Result<bool> {
    // SAFETY: `geteuid` has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("left out: containers need root");
        return Ok(false);
    }
    for program in ["podman", "runc"] {
        let said =
            Command::new(program).arg("--version").output().with_context(|| format!("{program}: `make setup`"))?;
        ensure!(said.status.success(), "{program} --version: {}", String::from_utf8_lossy(&said.stderr));
    }
    Ok(true)
}

/// Writes the folder and the specification; the path of the latter.
fn specification(world: &World, options: &[&str]) -> Result<PathBuf> {
    let dir = world.dir().join("cdi");
    let dir = dir.to_str().context("a path that is not UTF-8")?;
    let said = world.host().run(artifacts::urxe()?, &[&["cdi", "--dir", dir], options].concat())?;
    ensure!(said.stderr.starts_with("urxe: images need glibc 2."), "{said}");
    let path = world.dir().join("urxe.json");
    fs::write(&path, &said.stdout)?;
    Ok(path)
}

/// An image: programs of this machine and the libraries that they need.
fn image(dir: &Path) -> Result<PathBuf> {
    let root = dir.join("image");
    for folder in ["bin", "etc", "proc", "sys", "dev", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let copy = |from: &str, to: PathBuf| -> Result<()> {
        fs::create_dir_all(to.parent().context("a file without a folder")?)?;
        copy_program(from, to)
    };
    let copy_libraries = |of: &Path| -> Result<()> {
        let libraries = Command::new("ldd").arg(of).output()?;
        for word in String::from_utf8(libraries.stdout)?.split_whitespace().filter(|word| word.starts_with('/')) {
            copy(word, root.join(word.trim_start_matches('/')))?;
        }
        Ok(())
    };
    for program in ["sh", "cat", "ibv_devinfo", "ibv_rc_pingpong"] {
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output()?;
        let path = String::from_utf8(found.stdout)?;
        copy(path.trim(), root.join("bin").join(program))?;
        copy_libraries(Path::new(path.trim()))?;
    }
    // A build for glibc 2.28 names libraries that newer ones have merged into libc.so.6, and keep.
    copy_libraries(&artifacts::bin_dir()?.join("liburxe.so"))?;
    // Every image of a distribution with glibc has it.
    let libgcc = Command::new("sh")
        .args(["-c", "ls /lib/*/libgcc_s.so.1 /usr/lib64/libgcc_s.so.1 2>/dev/null | head -1"])
        .output()?;
    let libgcc = String::from_utf8(libgcc.stdout)?;
    copy(libgcc.trim(), root.join(libgcc.trim().trim_start_matches('/')))?;
    Ok(root)
}

/// Starts a container, in the network namespace of process `network` if there is one.
fn container(
    specification: &Path,
    network: Option<u32>,
    device: &str,
    options: &[&str],
    root: &Path,
    command: &[&str],
) -> Result<Process> {
    let mut podman = Command::new("unshare");
    podman.args(["--mount", "sh", "-c", ALONE]).arg(specification);
    podman.arg("--network").arg(network.map_or("none".to_owned(), |pid| format!("ns:/proc/{pid}/ns/net")));
    podman.arg("--device").arg(format!("urxe.dev/rdma={device}")).args(options).arg("--rootfs").arg(root).args(command);
    Process::spawn(podman)
}

#[test]
fn a_container_has_the_devices_it_asks_for() -> Result<()> {
    if !possible()? {
        return Ok(());
    }
    let world = World::bare()?;
    let specification = specification(&world, &["--netdev", "lo,lo", "--mtu", "1024"])?;
    let root = image(world.dir())?;
    for (device, names) in [("urxe0", &["urxe0"][..]), ("urxe1", &["urxe1"]), ("all", &["urxe0", "urxe1"])] {
        let said = container(&specification, None, device, &[], &root, &["ibv_devinfo"])?.finish(TIMEOUT)?.success()?;
        let found: Vec<&str> =
            said.stdout.lines().filter_map(|line| line.strip_prefix("hca_id:")).map(str::trim).collect();
        ensure!(found == names && said.stdout.contains("active_mtu:\t\t1024"), "{device}: {said}");
    }
    // What programs read by path.
    let script = "cat /sys/class/infiniband/urxe0/node_type /sys/class/infiniband_verbs/abi_version";
    let said =
        container(&specification, None, "urxe0", &[], &root, &["sh", "-c", script])?.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout == "1: CA\n6\n", "{said}");
    // Nothing of it can be changed.
    let script = "echo >/opt/urxe/liburxe.so";
    container(&specification, None, "urxe0", &[], &root, &["sh", "-c", script])?.finish(TIMEOUT)?.failure()?;
    Ok(())
}

#[test]
fn two_containers_with_a_network_each() -> Result<()> {
    if !possible()? {
        return Ok(());
    }
    let world = World::bare()?;
    let specification = specification(&world, &[])?;
    let other = world.add_host()?;
    world.link(world.host(), &other, 1500)?;
    let root = image(world.dir())?;
    let ends = [world.host(), &other];
    let start = |end: usize, arguments: &[&str]| {
        let command = [&["ibv_rc_pingpong", "-d", "urxe0", "-g", "1"], arguments].concat();
        container(&specification, Some(ends[end].pid()), "urxe0", &[], &root, &command)
    };
    let server = start(0, &[])?;
    wait_until("the server listens", || ends[0].is_listening(18515))?;
    let client = start(1, &[&ends[0].address()])?.finish(TIMEOUT)?.success()?;
    let server = server.finish(TIMEOUT)?.success()?;
    for said in [&client, &server] {
        ensure!(said.stdout.contains("GID ::ffff:10.77.0.") && said.stdout.contains("1000 iters"), "{said}");
    }
    ensure!(ends[1].packets_sent("veth0")? > 1000, "not over the cable");
    Ok(())
}

/// The variables of whoever starts a container win.
#[test]
fn a_container_chooses_faults_and_interface() -> Result<()> {
    if !possible()? {
        return Ok(());
    }
    let world = World::bare()?;
    let specification = specification(&world, &[])?;
    let root = image(world.dir())?;
    let say = |variable: &str| {
        container(&specification, None, "urxe0", &["-e", variable], &root, &["ibv_devinfo"])?.finish(TIMEOUT)
    };
    let said = say("URXE_NETDEV=eth7")?.failure()?;
    ensure!(said.stderr.contains("eth7"), "{said}");
    let said = say("URXE_FAULTS=fail=open_device:EPERM")?.failure()?;
    ensure!(said.stderr.contains("Failed to open device"), "{said}");
    Ok(())
}

#[test]
fn images_in_which_it_cannot_work_are_refused_in_a_line() -> Result<()> {
    if !possible()? {
        return Ok(());
    }
    let world = World::bare()?;
    let specification = specification(&world, &[])?;
    let musl = world.dir().join("musl");
    fs::create_dir_all(musl.join("lib"))?;
    fs::write(musl.join("lib/ld-musl-x86_64.so.1"), "")?;
    let said = container(&specification, None, "urxe0", &[], &musl, &["/bin/sh"])?.finish(TIMEOUT)?.failure()?;
    ensure!(said.stderr.contains("this image has musl (Alpine?), and urxe needs glibc 2."), "{said}");
    Ok(())
}

#[test]
fn remove_takes_the_specification_away() -> Result<()> {
    let world = World::bare()?;
    specification(&world, &[])?;
    let dir = world.dir().join("cdi");
    let said = world.host().run(artifacts::urxe()?, &["cdi", "--remove", "--dir", &dir.to_string_lossy()])?;
    ensure!(said.stdout == "removed\n" && !dir.exists(), "{said}");
    Ok(())
}

/// `make oci`: an image without a base, from which others copy.
#[test]
fn other_images_copy_the_files() -> Result<()> {
    /// `$0` is a folder with the image's archive and a Containerfile.
    const SCRIPT: &str = "set -e
mount -t tmpfs none /run
podman() { command podman --root /run/storage --runroot /run/podman \"$@\"; }
podman load --quiet --input \"$0\"/urxe-*.oci.tar >/dev/null
podman build --quiet --isolation chroot --tag copy --file \"$0/Containerfile\" \"$0\" >/dev/null
copied=$(podman image mount copy)
cmp \"$copied/opt/urxe/liburxe.so\" \"$0/liburxe.so\"
\"$copied/opt/urxe/urxe\" --version";
    if !possible()? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let run = |command: &mut Command| -> Result<String> {
        let said = command.output()?;
        ensure!(said.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said.stderr));
        Ok(String::from_utf8(said.stdout)?.trim_end().to_owned())
    };
    let tarball = run(Command::new(packaging.join("tarball")).arg(artifacts::bin_dir()?).arg(dir.path()))?;
    let make = || run(Command::new(packaging.join("oci")).arg(dir.path()).arg(&tarball));
    let archive = make()?;
    // The same files make the same image.
    let before = fs::read(&archive)?;
    ensure!(fs::read(make()?)? == before);
    run(Command::new("tar").args(["-xzf", &tarball, "--strip-components=1", "-C"]).arg(dir.path()))?;
    let version = env!("CARGO_PKG_VERSION");
    fs::write(
        dir.path().join("Containerfile"),
        format!("FROM scratch\nCOPY --from=urxe:{version} /opt/urxe /opt/urxe\n"),
    )?;
    let said = run(Command::new("unshare").args(["--mount", "sh", "-c", SCRIPT]).arg(dir.path()))?;
    ensure!(said == format!("urxe {version}"), "{said}");
    Ok(())
}
