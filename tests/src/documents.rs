//! Names in the documentation: files, `make` targets, tests, options, variables, rules. Each must exist.
//!
//! Read are the code spans, code blocks and links of Markdown files. What looks like nothing of ours is left alone.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::requirements::files;

/// Name of something that is not there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Missing {
    file: PathBuf,
    /// `no make target`
    what: &'static str,
    name: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.file.display(), self.what, self.name)
    }
}

/// Things that documents may name.
#[derive(Debug)]
pub struct Things {
    root: PathBuf,
    /// Top folders.
    rooms: BTreeSet<String>,
    /// Stems of test files, test functions, fuzz targets.
    tests: BTreeSet<String>,
    /// The contents of everything that is no document.
    sources: String,
    makefile: String,
    rules: BTreeSet<String>,
    /// Subcommands and options of the command: `status`, `--json`.
    commands: BTreeSet<String>,
    options: BTreeSet<String>,
}

impl Things {
    /// Names of the source tree at `root`. `help` is what the command prints about itself: its own help first, then that
    /// of each command.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(root: &Path, help: &[String]) -> Result<Self> {
        let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
        let mut things = Self {
            root: root.to_owned(),
            rooms: BTreeSet::new(),
            tests: BTreeSet::new(),
            sources: String::new(),
            makefile: read(&root.join("Makefile"))?,
            rules: BTreeSet::new(),
            commands: help.first().map(|text| commands(text)).unwrap_or_default(),
            options: help.iter().flat_map(|text| options(text)).map(str::to_owned).collect(),
        };
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() && !name.starts_with('.') && !name.starts_with("target") {
                things.rooms.insert(name);
            }
        }
        for path in [files(root, "rs")?, files(&root.join("fuzz/fuzz_targets"), "rs")?].concat() {
            let text = read(&path)?;
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
            if folder == "tests" || folder == "fuzz_targets" {
                things.tests.insert(stem);
            } else if stem == "main" {
                things.tests.insert(folder);
            } else if path.components().any(|part| part.as_os_str() == "tests") {
                things.tests.insert(stem);
            }
            for (before, line) in text.lines().zip(text.lines().skip(1)) {
                let function = line.trim().strip_prefix("fn ").and_then(|rest| rest.split('(').next());
                if let Some(function) = function.filter(|_| before.trim().starts_with("#[")) {
                    things.tests.insert(function.to_owned());
                }
            }
            // `name: "what it is made of", ...;` is a row of a macro that makes tests.
            let rows = text.lines().filter_map(|line| line.trim().strip_suffix(';')?.split_once(": \""));
            things.tests.extend(rows.map(|(name, _)| name.to_owned()));
            things.sources += &text;
        }
        for room in &things.rooms {
            for path in all_files(&root.join(room))? {
                // What is no text names nothing.
                if path.extension().is_none_or(|extension| extension != "md" && extension != "rs")
                    && let Ok(text) = fs::read_to_string(&path)
                {
                    things.sources += &text;
                }
            }
        }
        things.sources += &things.makefile;
        for path in files(&root.join("spec"), "md")? {
            let text = read(&path)?;
            things.rules.extend(text.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_uppercase));
        }
        Ok(things)
    }

    /// Names in the document at `path`, below the root, that do not exist.
    ///
    /// # Errors
    /// Fails if the document cannot be read.
    pub fn missing(&self, path: &Path) -> Result<BTreeSet<Missing>> {
        let text = fs::read_to_string(self.root.join(path)).with_context(|| path.display().to_string())?;
        Ok(self.missing_in(path, &text))
    }

    fn missing_in(&self, path: &Path, text: &str) -> BTreeSet<Missing> {
        let mut missing = BTreeSet::new();
        let mut miss =
            |what, name: &str| missing.insert(Missing { file: path.to_owned(), what, name: name.to_owned() });
        for code in code(text) {
            self.check_code(&code, &mut |what, name| {
                miss(what, name);
            });
        }
        for link in links(text) {
            if !self.is_link(path, text, &link) {
                miss("no such link:", &link);
            }
        }
        for test in shown_by(text).filter(|test| !self.is_test(test)) {
            miss("no test", &test);
        }
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
            if is_rule(word) && !self.rules.contains(word) {
                miss("no rule", word);
            }
        }
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if word.len() > 5 && word.starts_with("URXE_") && !self.sources.contains(word) {
                miss("no variable", word);
            }
        }
        missing
    }

    /// Looks at a code span, or a line of a code block.
    fn check_code(&self, code: &str, miss: &mut impl FnMut(&'static str, &str)) {
        let words: Vec<&str> = code.trim_start_matches("$ ").split_whitespace().collect();
        if let ["make", arguments @ ..] = &words[..] {
            for argument in arguments.iter().take_while(|word| !word.starts_with('#') && **word != "&&") {
                match argument.split_once('=') {
                    // Read by make, or by a recipe's shell.
                    Some((variable, _))
                        if ![format!("({variable})"), format!("${{{variable}:")]
                            .iter()
                            .any(|use_of_it| self.makefile.contains(use_of_it)) =>
                    {
                        miss("no variable of the Makefile", variable);
                    }
                    None if is_word(argument) && !self.makefile.contains(&format!("\n{argument}:")) => {
                        miss("no make target", argument);
                    }
                    _ => {}
                }
            }
        }
        let ours = words.first().is_some_and(|word| *word == "urxe" || word.ends_with("/urxe"));
        if ours
            && let Some(command) = words.get(1).filter(|word| is_word(word))
            && !self.commands.contains(*command)
        {
            miss("no command of urxe", command);
        }
        let alone = words.first().is_some_and(|word| word.starts_with("--"));
        // Behind this come a program and its own.
        let known = words.iter().take_while(|word| **word != "--");
        for option in
            known.filter(|word| ours || (alone && Some(*word) == words.first())).flat_map(|word| options(word))
        {
            if !self.options.contains(option) && (ours || !self.is_elsewhere(option)) {
                miss("no option of urxe", option);
            }
        }
        for pair in words.windows(2) {
            if pair[0] == "--test" && is_word(pair[1]) && !self.tests.contains(pair[1]) {
                miss("no test", pair[1]);
            }
        }
        if let [path] = words[..]
            && let Some((room, rest)) = path.split_once('/')
            && self.rooms.contains(room)
            && !self.is_path(room, rest)
        {
            miss("no file", path);
        }
    }

    /// Whether the repository has such a file or folder; tests and modules may be named without `tests` or `src` and extension.
    fn is_path(&self, room: &str, rest: &str) -> bool {
        let rest = rest.trim_end_matches('/');
        let candidates = [rest.to_owned(), format!("tests/{rest}"), format!("src/{rest}")];
        // `…` and `*` stand for anything.
        rest.contains(['…', '*', '<'])
            || candidates.iter().any(|candidate| {
                let room = self.root.join(room);
                room.join(candidate).exists() || room.join(format!("{candidate}.rs")).exists()
            })
    }

    /// Whether a source has this option: what stands alone may be another program's, or one of a tool of ours.
    fn is_elsewhere(&self, option: &str) -> bool {
        let field = option.trim_start_matches('-').replace('-', "_");
        self.sources.contains(option) || self.sources.contains(&format!(" {field}: "))
    }

    fn is_test(&self, name: &str) -> bool {
        match name.strip_suffix('*') {
            Some(start) => self.tests.iter().any(|test| test.starts_with(start)),
            None => self.tests.contains(name.trim_end_matches(".rs")),
        }
    }

    /// Whether a link of the document at `path` leads somewhere.
    fn is_link(&self, path: &Path, text: &str, link: &str) -> bool {
        let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
        if target.contains("://") {
            return true;
        }
        let file = self.root.join(path).with_file_name(target);
        let there = match target {
            "" => Some(text.to_owned()),
            _ if !file.exists() => return false,
            _ => fs::read_to_string(file).ok(),
        };
        anchor.is_empty() || there.is_some_and(|text| headings(&text).any(|heading| heading == anchor))
    }
}

/// The files below a folder.
fn all_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        match entry.file_type()? {
            // Corpora are no sources, and their folders come and go.
            kind if kind.is_dir() && (entry.file_name() == "target" || entry.file_name() == "corpus") => {}
            kind if kind.is_dir() => found.extend(all_files(&entry.path())?),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    Ok(found)
}

/// Targets of a Makefile.
#[must_use]
pub fn make_targets(makefile: &str) -> Vec<String> {
    let rules = makefile.lines().filter_map(|line| line.split_once(':').map(|(target, _)| target));
    rules.filter(|target| is_word(target)).map(str::to_owned).collect()
}

/// `MEM-001`
fn is_rule(word: &str) -> bool {
    word.split_once('-').is_some_and(|(group, number)| {
        group.len() == 3
            && group.bytes().all(|byte| byte.is_ascii_uppercase())
            && number.len() == 3
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// A name in small letters.
fn is_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte))
}

/// Commands that a help lists.
#[must_use]
pub fn commands(help: &str) -> BTreeSet<String> {
    // Titles of tasks stand at the left margin.
    let lines = help.lines().take_while(|line| *line != "Options:").filter(|line| line.starts_with("  "));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// `--names` in a text.
fn options(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.strip_prefix("--").is_some_and(is_word))
}

/// Code spans and the lines of code blocks.
fn code(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, block) in text.split("```").enumerate() {
        if index % 2 == 1 {
            found.extend(block.lines().skip(1).map(|line| line.trim().to_owned()));
            continue;
        }
        // A span ends within its paragraph.
        for paragraph in block.split("\n\n") {
            let spans = paragraph.split('`').skip(1).step_by(2);
            found.extend(spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    found
}

/// Where the links of a text lead.
fn links(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect();
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a document's headings.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        heading.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).collect::<String>().replace(' ', "-")
    })
}

/// The tests that the last columns of tables name, whose heads say "shown by".
fn shown_by(text: &str) -> impl Iterator<Item = String> {
    let mut in_table = false;
    let cells = text.lines().filter_map(move |line| {
        in_table = line.ends_with("| shown by |") || (in_table && line.starts_with('|'));
        line.strip_suffix('|').filter(|_| in_table)?.rsplit('|').next()
    });
    // Those of others' suites are not here, and in parentheses stand programs.
    let clauses = cells.flat_map(|cell| cell.split(';')).filter(|clause| !clause.contains("pyverbs"));
    let outside = clauses.map(|clause| clause.split('(').next().unwrap_or(clause));
    outside.flat_map(|clause| clause.split('`').skip(1).step_by(2)).map(str::to_owned).filter(|name| {
        let stem = name.trim_end_matches('*').trim_end_matches(".rs");
        is_word(stem) && !stem.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn things() -> Things {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let help = ["Look:\n  status  Show\n\nOptions:\n  -h  Print\n".to_owned(), "  --json  As JSON".to_owned()];
        Things::read(&root, &help).unwrap()
    }

    fn missing(text: &str) -> Vec<String> {
        let all = things().missing_in(Path::new("docs/new.md"), text);
        all.into_iter().map(|missing| format!("{} {}", missing.what, missing.name)).collect()
    }

    #[test]
    fn existing_names_are_not_reported() {
        let text = "`make test`, `make tarball GLIBC=2.28`, [features](reference/features.md#memory), `urxe status --json`, `--json`, `--only 1`,\n\
                    `tests/src/documents.rs`, `engine/cm`, `wire`, `URXE_NETDEV`, MEM-001, `urxe run -- prog --its-own`\n\
                    \n| what | shown by |\n|---|---|\n| this | `documents`, pyverbs `that`; `verbs_*` |\n";
        assert_eq!(missing(&text.replace("urxe run", "urxe status")), [] as [&str; 0]);
    }

    #[test]
    fn missing_names_are_reported() {
        for (text, found) in [
            ("`make nothing`", "no make target nothing"),
            ("```\nmake nothing  # says why\n```", "no make target nothing"),
            ("`make test NOWHERE=1`", "no variable of the Makefile NOWHERE"),
            ("[there](nowhere.md)", "no such link: nowhere.md"),
            ("[there](reference/features.md#nowhere)", "no such link: reference/features.md#nowhere"),
            ("[there](#nowhere)", "no such link: #nowhere"),
            ("`urxe dance`", "no command of urxe dance"),
            ("`urxe status --only`", "no option of urxe --only"),
            (concat!("`--", "dance`"), concat!("no option of urxe --", "dance")),
            ("`tests/src/nowhere.rs`", "no file tests/src/nowhere.rs"),
            ("`cargo test -p urxe-tests --test nowhere`", "no test nowhere"),
            ("| what | shown by |\n|---|---|\n| this | `nowhere` |\n", "no test nowhere"),
            ("| what | shown by |\n|---|---|\n| this | `nowhere_*` |\n", "no test nowhere_*"),
            ("MEM-999", "no rule MEM-999"),
            (concat!("`URXE_", "NOWHERE`"), concat!("no variable URXE_", "NOWHERE")),
        ] {
            assert_eq!(missing(text), [found], "{text}");
        }
    }
}
