//! The paths that `urxe run` shows, by every call that takes one.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use urxe_tests::{Launcher, TIMEOUT};

const PORT: &str = "/sys/class/infiniband/urxe0/ports/1";

/// Options of `urxe run` with which programs that are linked with libc see the same files: by the library, and by mounts
/// too.
const WAYS: [&[&str]; 2] = [&[], &["--isolate"]];

#[test]
fn calls_of_python() -> Result<()> {
    let script = format!(
        "import glob, os, pathlib
port = '{PORT}'
def say(*values): print(*values, sep='|')
say(open(port + '/state').read().strip())
say(open('//sys/./class//infiniband/urxe0/node_type').read().strip())
say(sorted(os.listdir('/sys/class/infiniband')), [entry.name for entry in os.scandir('/sys/class/infiniband')])
say(os.path.exists(port), os.path.exists(port + '/nothing'), os.access(port + '/state', os.R_OK))
say(os.path.isdir(port), os.lstat('/sys/class/infiniband/urxe0').st_mode & 0o170000 == 0o120000)
say(os.readlink('/sys/class/infiniband/urxe0'))
say(os.path.realpath('/sys/class/infiniband/urxe0'), os.path.realpath('/sys/class/infiniband/urxe0/..'))
say(glob.glob('/sys/class/infiniband/*/ports/*/state'))
os.chdir('/sys/class/infiniband')
say(os.getcwd(), open('urxe0/node_desc').read().strip(), os.path.exists('../net/lo'))
dir = os.open('/sys/class/infiniband', os.O_RDONLY | os.O_DIRECTORY)
say(os.open('urxe0/ports/1/rate', os.O_RDONLY, dir_fd=dir) > 0, os.stat('/sys/class/infiniband/urxe0', dir_fd=dir).st_nlink > 0)
say(sum(len(files) for _, _, files in os.walk('/sys/class/infiniband_verbs', followlinks=True)))
say(pathlib.Path('/dev/infiniband/uverbs0').is_char_device())"
    );
    let wanted = "4: ACTIVE
1: CA
['urxe0']|['urxe0']
True|False|True
True|True
../../devices/virtual/infiniband/urxe0
/sys/devices/virtual/infiniband/urxe0|/sys/devices/virtual/infiniband
['/sys/class/infiniband/urxe0/ports/1/state']
/sys/class/infiniband|urxe|True
True|True
4
True
";
    let launcher = Launcher::new()?;
    for options in WAYS {
        let said = launcher.try_run(options, &["/usr/bin/python3", "-c", &script])?.success()?;
        ensure!(said.stdout == wanted, "{options:?}: {said}\nwanted\n{wanted}");
    }
    Ok(())
}

/// Every function that takes a path, the changes that a read-only file system refuses, and paths that are relative to
/// folders above.
#[test]
fn every_function_with_a_path() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = compiled(&launcher, "paths", include_str!("../programs/paths.c"))?;
    let said = launcher.run(&[&program])?;
    ensure!(said.stdout == "all\n", "{said}");
    Ok(())
}

/// Runs the table in namespaces, with the library and without it: then every path is the kernel's to find.
#[test]
fn every_function_with_a_path_in_namespaces() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = compiled(&launcher, "paths", include_str!("../programs/paths.c"))?;
    for words in [&["env", "ISOLATED=1"][..], &["env", "ISOLATED=1", "URXE_RUN=", "LD_PRELOAD="]] {
        let said = launcher.try_run(&["--isolate"], &[words, &[&program]].concat())?.success()?;
        ensure!(said.stdout == "all\n" && said.stderr.is_empty(), "{said}");
    }
    Ok(())
}

/// A program without a dynamic linker sees the files, and nothing outside changes.
#[test]
fn static_programs_in_namespaces() -> Result<()> {
    let launcher = Launcher::new()?;
    let source = launcher.world().dir().join("static.c");
    std::fs::write(&source, STATIC)?;
    let program = source.with_extension("").display().to_string();
    launcher.host().run("gcc", &["-static", "-O2", "-w", "-o", &program, &source.display().to_string()])?;
    let said = launcher.try_run(&[], &[&program])?.failure()?;
    ensure!(said.stderr.contains("is statically linked") && said.stdout.contains("node_guid: No such"), "{said}");
    for personality in ["virtual", "pci"] {
        let options = ["--isolate", "--personality", personality];
        let said = launcher.try_run(&options, &[&program])?.success()?;
        ensure!(said.stdout == "0200:00ff:fe00:0000\n" && said.stderr.is_empty(), "{said}");
    }
    // Devices work, for root as well, and by names that lead through links of one's own.
    let script = "ibv_devinfo -d urxe0 | grep -q PORT_ACTIVE; ln -s /sys/class/infiniband $TMPDIR/link; cat $TMPDIR/link/urxe0/node_type
        test -e /dev/pts -a -w /dev/null -a -e /sys/class/net/lo; id -u; rm $TMPDIR/link";
    let said = launcher.try_run(&["--isolate"], &["sh", "-ec", script])?.success()?;
    ensure!(said.stdout.starts_with("1: CA\n"), "{said}");
    let urxe = launcher.urxe().display().to_string();
    let said = launcher.host().run(&urxe, &["run", "--isolate", "--", "sh", "-ec", script])?;
    ensure!(said.stdout == "1: CA\n0\n", "{said}");
    ensure!(!launcher.host().root().join("dev/infiniband").exists(), "it is seen outside");
    // Where namespaces cannot be made, one line says so.
    let without = Launcher::without_user_namespaces()?;
    let urxe = without.urxe().display().to_string();
    let words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", &urxe, "run", "--isolate", "--", "true"];
    let refused = without.host().start(without.plain(&words))?.finish(TIMEOUT)?;
    ensure!(refused.status.code() == Some(125) && refused.stderr.lines().count() == 1, "{refused}");
    ensure!(refused.stderr.contains("user namespaces must be allowed"), "{refused}");
    Ok(())
}

/// Pseudoterminals can be made, nothing names the run's folder, and a run inside another works: of root and of a user.
#[test]
fn namespaces_have_terminals_keep_the_folder_secret_and_nest() -> Result<()> {
    let launcher = Launcher::new()?;
    let urxe = launcher.urxe().display().to_string();
    // In a world without root there may be none to begin with.
    let terminals = launcher.host().run("/usr/bin/python3", &["-c", "import os; os.openpty()"]).is_ok();
    let python = "import os, sys
folder = os.environ['URXE_RUN'].rsplit('/', 1)[1]
assert folder not in open('/proc/self/mountinfo').read()
if sys.argv[1] == 'true':
    master, slave = os.openpty()
    assert os.path.samestat(os.stat(os.ttyname(slave)), os.fstat(slave))
print(len(os.listdir('/sys/class/infiniband')), os.path.exists('/dev/pts'), os.path.exists('/sys/class/net/lo'))";
    let terminals = terminals.to_string();
    let program = ["/usr/bin/python3", "-c", python, &terminals];
    let inner = [&[urxe.as_str(), "run", "--isolate", "--"], &program[..]].concat();
    for words in [&program[..], &inner] {
        let said = launcher.try_run(&["--isolate"], words)?.success()?;
        ensure!(said.stdout == "1 True True\n" && said.stderr.is_empty(), "{said}");
        let said = launcher.host().run(&urxe, &[&["run", "--isolate", "--"], words].concat())?;
        ensure!(said.stdout == "1 True True\n" && said.stderr.is_empty(), "as root: {said}");
    }
    let said = launcher.run(&inner)?;
    ensure!(said.stdout == "1 True True\n" && said.stderr.is_empty(), "below one without namespaces: {said}");
    Ok(())
}

const STATIC: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
    struct stat st; char text[64] = "";
    int fd = open("/sys/class/infiniband/urxe0/node_guid", O_RDONLY);
    if (fd < 0) { printf("node_guid: %s\n", strerror(errno)); return 1; }
    if (read(fd, text, sizeof text) < 0) return 2;
    if (stat("/dev/infiniband/uverbs0", &st) || !S_ISCHR(st.st_mode) || st.st_rdev != 0x103) return 3;
    if (chmod("/dev/infiniband/uverbs0", 0600) == 0 || errno != EROFS) return 4;
    if (open("/dev/infiniband/uverbs0", O_RDWR) < 0) return 5;
    fputs(text, stdout);
    return 0;
}
"#;

/// Threads with stacks of 16 KiB and signal handlers with less make the calls that they make on a large stack.
#[test]
fn calls_on_small_stacks() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = compiled(&launcher, "small_stacks", include_str!("../programs/small_stacks.c"))?;
    let folder = launcher.world().dir().join("work");
    std::fs::create_dir(&folder)?;
    // The program is another user's.
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777))?;
    let said = launcher.run(&[&program, &folder.display().to_string()])?;
    ensure!(said.stdout == "all\n", "{said}");
    Ok(())
}

/// The path of a program made from this source.
fn compiled(launcher: &Launcher, name: &str, source: &str) -> Result<String> {
    let file = launcher.world().dir().join(name).with_extension("c");
    std::fs::write(&file, source)?;
    let (program, file) = (file.with_extension("").display().to_string(), file.display().to_string());
    launcher.host().run("gcc", &["-O2", "-w", "-o", &program, &file])?;
    Ok(program)
}

/// Names of libc's that Python does not use, the older and fortified ones among them.
#[test]
fn calls_of_c() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = compiled(&launcher, "calls", CALLS)?;
    for options in WAYS {
        let said = launcher.try_run(options, &[&program])?.success()?;
        ensure!(said.stdout == "all\n", "{options:?}: {said}");
    }
    Ok(())
}

/// Each name is called by itself, as a program that was linked long ago would.
const CALLS: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE "/sys/class/infiniband/urxe0"
#define CHECK(what) do { if (!(what)) { printf("%d: %s (errno %d)\n", __LINE__, #what, errno); return 1; } } while (0)
#define CALL(type, name, ...) (((type (*)())dlsym(RTLD_DEFAULT, name))(__VA_ARGS__))

static int visited;
static int visit(const char *path, const struct stat *s, int flag, void *ftw) { visited++; return 0; }

int main(void) {
    char text[4096]; struct stat st; struct statx sx; struct dirent **list; glob_t found;
    /* x86-64 numbers the version of struct stat 1, the others 0. */
#ifdef __x86_64__
    int version = 1;
#else
    int version = 0;
#endif
    const char *opens[] = {"open", "open64", "__open_2", "__open64_2"};
    for (int i = 0; i < 4; i++) CHECK(CALL(int, opens[i], DEVICE "/node_guid", O_RDONLY, 0) >= 0);
    const char *openats[] = {"openat", "openat64", "__openat_2", "__openat64_2"};
    for (int i = 0; i < 4; i++) CHECK(CALL(int, openats[i], AT_FDCWD, DEVICE "/node_guid", O_RDONLY, 0) >= 0);
    CHECK(CALL(void *, "fopen", DEVICE "/node_guid", "r"));
    CHECK(CALL(void *, "fopen64", DEVICE "/node_guid", "r"));
    CHECK(CALL(void *, "freopen", DEVICE "/node_guid", "r", stdin));
    CHECK(CALL(void *, "freopen64", DEVICE "/node_guid", "r", stdin));
    CHECK(opendir(DEVICE "/ports"));
    CHECK(CALL(int, "scandir", DEVICE "/ports", &list, NULL, alphasort) == 3);
    CHECK(CALL(int, "scandir64", DEVICE "/ports", &list, NULL, alphasort) == 3);
    CHECK(CALL(int, "nftw", DEVICE "/ports", visit, 8, 0) == 0 && visited > 10);
    CHECK(CALL(int, "nftw64", DEVICE "/ports", visit, 8, 0) == 0);
    CHECK(inotify_add_watch(inotify_init(), "/dev/infiniband", IN_CREATE) >= 0);
    const char *stats[] = {"stat", "stat64", "lstat", "lstat64"};
    for (int i = 0; i < 4; i++) CHECK(CALL(int, stats[i], DEVICE "/ports", &st) == 0 && S_ISDIR(st.st_mode));
    const char *xstats[] = {"__xstat", "__xstat64", "__lxstat", "__lxstat64"};
    for (int i = 0; i < 4; i++) CHECK(CALL(int, xstats[i], version, DEVICE "/ports", &st) == 0 && S_ISDIR(st.st_mode));
    CHECK(CALL(int, "fstatat", AT_FDCWD, DEVICE "/ports", &st, 0) == 0);
    CHECK(CALL(int, "fstatat64", AT_FDCWD, DEVICE "/ports", &st, 0) == 0);
    CHECK(CALL(int, "__fxstatat", version, AT_FDCWD, DEVICE "/ports", &st, 0) == 0);
    CHECK(CALL(int, "__fxstatat64", version, AT_FDCWD, DEVICE "/ports", &st, 0) == 0);
    CHECK(statx(AT_FDCWD, DEVICE, 0, STATX_TYPE, &sx) == 0);
    CHECK(access(DEVICE, R_OK) == 0 && eaccess(DEVICE, R_OK) == 0 && euidaccess(DEVICE, R_OK) == 0);
    CHECK(faccessat(AT_FDCWD, DEVICE, R_OK, 0) == 0);
    CHECK(CALL(ssize_t, "listxattr", DEVICE, text, sizeof text) >= 0);
    CHECK(CALL(ssize_t, "llistxattr", DEVICE, text, sizeof text) >= 0);
    CHECK(CALL(ssize_t, "getxattr", DEVICE, "user.none", text, sizeof text) < 0 && errno != ENOENT);
    CHECK(CALL(ssize_t, "lgetxattr", DEVICE "/ports", "user.none", text, sizeof text) < 0 && errno != ENOENT);

    CHECK(readlink(DEVICE, text, sizeof text) > 0 && !strncmp(text, "../../devices", 13));
    CHECK(CALL(ssize_t, "__readlink_chk", DEVICE, text, sizeof text, sizeof text) > 0);
    CHECK(readlinkat(AT_FDCWD, DEVICE, text, sizeof text) > 0);
    CHECK(CALL(ssize_t, "__readlinkat_chk", AT_FDCWD, DEVICE, text, sizeof text, sizeof text) > 0);
    snprintf(text, sizeof text, "/proc/self/fd/%d", open(DEVICE "/node_guid", O_RDONLY));
    char target[4096] = "";
    CHECK(readlink(text, target, sizeof target) > 0 && !strcmp(target, "/sys/devices/virtual/infiniband/urxe0/node_guid"));
    CHECK(!strcmp(realpath(DEVICE, text), "/sys/devices/virtual/infiniband/urxe0"));
    CHECK(!strcmp(realpath(DEVICE, NULL), "/sys/devices/virtual/infiniband/urxe0"));
    CHECK(!strcmp(CALL(char *, "__realpath_chk", DEVICE, text, sizeof text), "/sys/devices/virtual/infiniband/urxe0"));
    CHECK(!strcmp(canonicalize_file_name(DEVICE), "/sys/devices/virtual/infiniband/urxe0"));
    CHECK(CALL(int, "glob", "/sys/class/infiniband/*", 0, NULL, &found) == 0);
    CHECK(found.gl_pathc == 1 && !strcmp(found.gl_pathv[0], DEVICE));
    globfree(&found);
    found.gl_offs = 2;
    CHECK(CALL(int, "glob64", "/sys/class/infiniband/*", GLOB_DOOFFS, NULL, &found) == 0);
    CHECK(found.gl_pathc == 1 && !strcmp(found.gl_pathv[2], DEVICE));
    CHECK(chdir("/sys/class/infiniband") == 0 && !strcmp(getcwd(text, sizeof text), "/sys/class/infiniband"));
    CHECK(!strcmp(CALL(char *, "__getcwd_chk", text, sizeof text, sizeof text), "/sys/class/infiniband"));

    /* Everything else passes, mistakes too. */
    CHECK(open("/sys/class/infiniband_else", O_RDONLY) < 0 && errno == ENOENT);
    CHECK(open("/dev/null", O_RDWR) >= 0 && stat("/sys/class/net", &st) == 0);
    CHECK(access("", F_OK) < 0 && errno == ENOENT);
    memset(text, 'x', sizeof text); memcpy(text, DEVICE "/", sizeof DEVICE); text[sizeof text - 1] = 0;
    CHECK(open(text, O_RDONLY) < 0);
    int created = open("created", O_CREAT | O_WRONLY | O_EXCL, 0640);
    CHECK(created >= 0 && fstat(created, &st) == 0 && (st.st_mode & 07777) == (0640 & ~umask(0)));
    puts("all");
    return 0;
}
"#;

/// fts(3) leaves a folder by `..`, and stops where that leads elsewhere than it came from.
#[test]
fn a_walk_through_dev_does_not_end_in_the_folder_of_the_run() -> Result<()> {
    let launcher = Launcher::new()?;
    // `/dev/shm`, or wherever else there was room.
    let said = launcher.sh("base=$(dirname \"$(dirname \"$URXE_RUN\")\")
        du -s \"$base\" >/dev/null
        find /dev \"$base\" -name uverbs0
        ls \"$base\"")?;
    ensure!(said.stdout == "/dev/infiniband/uverbs0\n" && said.stderr.is_empty(), "{said}");
    Ok(())
}

#[test]
fn programs_that_walk_trees() -> Result<()> {
    let launcher = Launcher::new()?;
    for options in WAYS {
        let run = |words: &[&str]| launcher.try_run(options, words)?.success();
        let listed = run(&["ls", "-lR", "/sys/class/infiniband/", "/dev/infiniband"])?;
        ensure!(listed.stdout.contains("urxe0 -> ../../devices/virtual/infiniband/urxe0"), "{options:?}: {listed}");
        let found = run(&["find", "/sys/class/infiniband/urxe0/ports/", "-name", "state"])?;
        ensure!(found.stdout == "/sys/class/infiniband/urxe0/ports/1/state\n", "{options:?}: {found}");
        let script = "cd /sys/class/infiniband; pwd -P; echo *; [[ -d /sys/class/infiniband/urxe0 ]]";
        let shell = run(&["bash", "-ec", script])?;
        ensure!(shell.stdout == "/sys/class/infiniband\nurxe0\n", "{options:?}: {shell}");
    }
    Ok(())
}

/// A PCI function, for programs that insist on one.
#[test]
fn personality_pci() -> Result<()> {
    let launcher = Launcher::new()?;
    let script = "realpath /sys/class/infiniband/urxe0/device
        cd /sys/class/infiniband/urxe0/device/
        cat class vendor device numa_node max_link_width
        ls infiniband net
        stat -c %s config; readlink driver iommu_group infiniband_verbs/uverbs0/device
        test -L /sys/kernel/iommu_groups/757200/devices/7572:00:00.0 -a -e /sys/bus/pci/drivers/urxe/7572:00:00.0/vendor
        realpath /sys/class/net/lo/device; readlink /sys/class/net/lo/device; cd /sys/class/net/lo; ls | grep -cx device
        cat device/vendor; ls /sys/devices/virtual | grep -cx net
        cat /sys/bus/pci/devices/7572:00:00.0/uevent | grep SLOT
        test -e /sys/class/pci_bus/7572:00/../../7572:00:00.0/numa_node
        ibv_devices | grep -c urxe0";
    let said = launcher.try_run(&["--personality", "pci"], &["sh", "-ec", script])?.success()?;
    let wanted = "/sys/devices/pci7572:00/7572:00:00.0\n0x020000\n0x7572\n0x7865\n0\n16\n\
                  infiniband:\nurxe0\n\nnet:\nlo\n256\n../../../bus/pci/drivers/urxe\n\
                  ../../../kernel/iommu_groups/757200\n../../../7572:00:00.0\n\
                  /sys/devices/pci7572:00/7572:00:00.0\n../../../../devices/pci7572:00/7572:00:00.0\n1\n\
                  0x7572\n1\nPCI_SLOT_NAME=7572:00:00.0\n1\n";
    ensure!(said.stdout == wanted, "{said}\nwanted\n{wanted}");
    // Without it, an interface is the machine's.
    let said = launcher
        .try_run(&[], &["sh", "-c", "readlink /sys/class/net/lo/device; ls /sys/class/net/lo | grep -cx device"])?;
    ensure!(said.stdout == "0\n", "{said}");
    // In namespaces, the kernel itself finds it.
    let script = "env LD_PRELOAD= realpath /sys/class/net/lo/device /sys/bus/pci/drivers/urxe/7572:00:00.0 /sys/class/net/lo/device/iommu_group";
    let said = launcher.try_run(&["--isolate", "--personality", "pci"], &["sh", "-ec", script])?.success()?;
    let function = "/sys/devices/pci7572:00/7572:00:00.0\n";
    ensure!(said.stdout == format!("{function}{function}/sys/kernel/iommu_groups/757200\n"), "{said}");
    Ok(())
}

/// A card's names and ids. The stock provider for that card leaves the device alone.
#[test]
fn personality_mlx5() -> Result<()> {
    let launcher = Launcher::new()?;
    let source = include_str!("../programs/direct_verbs.c");
    let program = launcher.world().dir().join("direct_verbs");
    let path = program.with_extension("c");
    std::fs::write(&path, source)?;
    let (path, program) = (path.display().to_string(), program.display().to_string());
    launcher.host().run("gcc", &["-O2", "-Wall", "-Werror", "-o", &program, &path, "-libverbs", "-lmlx5"])?;
    let said = launcher.try_run(&["--personality", "mlx5"], &[&program])?.success()?;
    ensure!(said.stdout == "mlx5_0: 0x2c9 4119, direct verbs 0, EOPNOTSUPP, EOPNOTSUPP\n", "{said}");
    let script = "readlink /sys/class/net/lo/device/driver; cat /sys/class/infiniband/mlx5_0/device/vendor
        realpath /sys/class/infiniband/mlx5_0/device/driver; ibv_devinfo | grep -c PORT_ACTIVE";
    let said = launcher.try_run(&["--personality", "mlx5"], &["sh", "-ec", script])?.success()?;
    let wanted = "../../../bus/pci/drivers/mlx5_core\n0x15b3\n/sys/bus/pci/drivers/mlx5_core\n1\n";
    ensure!(said.stdout == wanted, "{said}");
    let urxe = launcher.urxe().display().to_string();
    let said = launcher.host().start(launcher.plain(&[&urxe, "doctor", "--personality", "mlx5"]))?.finish(TIMEOUT)?;
    ensure!(
        said.stdout.contains("warning  personality mlx5: devices have the names and ids of a ConnectX-5"),
        "{said}"
    );
    let said = launcher.host().start(launcher.plain(&[&urxe, "doctor"]))?.finish(TIMEOUT)?;
    ensure!(!said.stdout.contains("ConnectX") && said.stdout.contains("raw Ethernet: "), "{said}");
    Ok(())
}
