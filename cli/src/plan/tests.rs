//! Tests: files that may be overwritten, files that must not be, and nothing that stays.

use super::*;

/// Every path below `root`, with what is there: the whole tree as text.
fn snapshot(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap();
            let what = if kind.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if kind.is_dir() {
                pending.push(path.clone());
                "dir".to_owned()
            } else {
                format!("= {}", fs::read_to_string(&path).unwrap())
            };
            lines.push(format!("{} {what}", path.strip_prefix(root).unwrap().display()));
        }
    }
    lines.sort();
    lines
}

fn plan(root: &Path, text: &str) -> Plan {
    let mut plan = Plan::default();
    plan.text(root.join("etc/deep/er/a"), text);
    plan.link(root.join("dev/b"), "/dev/null");
    plan
}

#[test]
fn removal_leaves_no_trace() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/foreign"), "mine").unwrap();
    let before = snapshot(root.path());

    let manifest = root.path().join("var/manifest");
    plan(root.path(), "one").apply(&manifest).unwrap();
    assert_eq!(fs::read_to_string(root.path().join("etc/deep/er/a")).unwrap(), "one");
    assert_eq!(fs::read_link(root.path().join("dev/b")).unwrap(), Path::new("/dev/null"));
    assert!(remove(&manifest).unwrap());

    assert_eq!(snapshot(root.path()), before);
    assert!(!remove(&manifest).unwrap());
}

#[test]
fn an_upgrade_replaces_and_drops_what_is_no_longer_planned() {
    let root = tempfile::tempdir().unwrap();
    let manifest = root.path().join("var/manifest");
    let mut first = plan(root.path(), "one");
    first.text(root.path().join("old/gone"), "");
    first.apply(&manifest).unwrap();
    plan(root.path(), "two").apply(&manifest).unwrap();

    assert_eq!(fs::read_to_string(root.path().join("etc/deep/er/a")).unwrap(), "two");
    assert!(!root.path().join("old").exists());
    remove(&manifest).unwrap();
    assert_eq!(snapshot(root.path()), Vec::<String>::new());
}

#[test]
fn a_foreign_file_is_named_and_nothing_changes() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("dev")).unwrap();
    fs::write(root.path().join("dev/b"), "somebody's").unwrap();
    let before = snapshot(root.path());

    let error = plan(root.path(), "one").apply(&root.path().join("var/manifest")).unwrap_err();

    assert!(error.to_string().contains("dev/b"), "{error}");
    assert_eq!(snapshot(root.path()), before);
}

#[test]
fn removal_keeps_files_of_others() {
    let root = tempfile::tempdir().unwrap();
    let manifest = root.path().join("var/manifest");
    plan(root.path(), "one").apply(&manifest).unwrap();
    fs::write(root.path().join("etc/deep/foreign"), "").unwrap();
    fs::remove_file(root.path().join("dev/b")).unwrap();
    fs::write(root.path().join("dev/b"), "a device now").unwrap();

    remove(&manifest).unwrap();

    assert_eq!(
        snapshot(root.path()),
        ["dev dir", "dev/b = a device now", "etc dir", "etc/deep dir", "etc/deep/foreign = "]
    );
}

#[test]
fn a_replaced_file_is_a_new_file() {
    use std::os::unix::fs::MetadataExt;
    let root = tempfile::tempdir().unwrap();
    let manifest = root.path().join("var/manifest");
    plan(root.path(), "one").apply(&manifest).unwrap();
    let mapped = fs::File::open(root.path().join("etc/deep/er/a")).unwrap();
    plan(root.path(), "two").apply(&manifest).unwrap();
    assert_ne!(mapped.metadata().unwrap().ino(), root.path().join("etc/deep/er/a").metadata().unwrap().ino());
}

#[test]
fn a_link_at_the_name_of_a_new_file_is_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let other = root.path().join("other");
    fs::write(&other, "somebody's").unwrap();
    fs::create_dir(root.path().join("var")).unwrap();
    symlink(&other, root.path().join("var/manifest.urxe-new")).unwrap();
    plan(root.path(), "one").apply(&root.path().join("var/manifest")).unwrap();
    assert_eq!(fs::read_to_string(other).unwrap(), "somebody's");
}
