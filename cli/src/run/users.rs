//! Users of a folder: processes that have it in their environment.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The processes that use a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Users {
    /// Process numbers; at least one.
    These(Vec<u32>),
    /// No user that can be seen, but a process is just becoming another program (execve(2)), and it cannot be seen with which
    /// environment.
    Unclear,
    Nobody,
}

/// Finds the users of this folder.
pub(super) fn of(folder: &Path) -> Users {
    below(Path::new("/proc"), folder)
}

/// Environment of a process, as far as it can be read.
enum Environment {
    Is(Vec<u8>),
    IsComing,
    /// Another user's, or nobody's any more.
    IsHidden,
}

fn below(proc: &Path, folder: &Path) -> Users {
    let entry = [urxe_options::RUN_VARIABLE.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let (mut users, mut is_unclear) = (Vec::new(), false);
    for process in fs::read_dir(proc).into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match environment(&process.path()) {
            Environment::Is(variables) if variables.split(|&byte| byte == 0).any(|variable| variable == entry) => {
                users.push(pid);
            }
            Environment::IsComing => is_unclear = true,
            Environment::Is(_) | Environment::IsHidden => {}
        }
    }
    match users {
        users if !users.is_empty() => Users::These(users),
        _ if is_unclear => Users::Unclear,
        _ => Users::Nobody,
    }
}

fn environment(process: &Path) -> Environment {
    let read = || fs::read(process.join("environ"));
    match read() {
        Ok(variables) if !variables.is_empty() => Environment::Is(variables),
        Ok(_) => match fs::read_to_string(process.join("stat")) {
            Ok(stat) if is_becoming_another(&stat) => Environment::IsComing,
            // It may have come in between.
            _ => read().map_or(Environment::IsHidden, Environment::Is),
        },
        Err(_) => Environment::IsHidden,
    }
}

/// Whether a process has no environment yet, by its `stat` (proc_pid_stat(5)): not even an empty one.
fn is_becoming_another(stat: &str) -> bool {
    /// A thread of the kernel (`PF_KTHREAD` of linux/sched.h), which never has one.
    const KERNEL: u32 = 0x0020_0000;
    // The name, in parentheses, may hold anything. Behind it is field 3.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default();
    let (state, flags, env_end) = (field(3), field(9).parse(), field(51));
    let has_ended = matches!(state, "Z" | "X");
    !has_ended && flags.is_ok_and(|flags: u32| flags & KERNEL == 0) && env_end == "0"
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "/dev/shm/urxe-1";

    /// A process as /proc shows it.
    fn add(proc: &Path, pid: u32, environ: &str, state: &str, flags: u32, env_end: u64) {
        let dir = proc.join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("environ"), environ).unwrap();
        let zeros = |count: usize| "0 ".repeat(count);
        let stat = format!("{pid} (a) b) {state} {}{flags} {}{env_end} 0\n", zeros(5), zeros(41));
        fs::write(dir.join("stat"), stat).unwrap();
    }

    #[test]
    fn processes_that_have_it_in_their_environment() {
        let proc = tempfile::tempdir().unwrap();
        let users = || below(proc.path(), Path::new(FOLDER));
        fs::create_dir(proc.path().join("sys")).unwrap();
        assert_eq!(users(), Users::Nobody);
        add(proc.path(), 10, "A=1\0URXE_RUN=/dev/shm/urxe-12\0", "S", 0x40_0000, 7000);
        // A zombie, a thread of the kernel, a program without any variable.
        add(proc.path(), 11, "", "Z", 0x40_0000, 0);
        add(proc.path(), 12, "", "I", 0x0020_8040, 0);
        add(proc.path(), 13, "", "S", 0x40_0000, 7000);
        assert_eq!(users(), Users::Nobody);
        add(proc.path(), 14, "", "R", 0x40_0000, 0);
        assert_eq!(users(), Users::Unclear);
        add(proc.path(), 15, &format!("A=1\0URXE_RUN={FOLDER}\0"), "S", 0x40_0000, 7000);
        assert_eq!(users(), Users::These(vec![15]));
    }

    #[test]
    fn this_process_has_an_environment() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(!is_becoming_another(&stat), "{stat}");
        assert!(matches!(environment(Path::new("/proc/self")), Environment::Is(_)));
    }
}
