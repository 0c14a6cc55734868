//! Documents name only what exists, and all of what they list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use urxe_engine::congestion::Parameters;
use urxe_tests::documents::{Things, commands};
use urxe_tests::requirements::files;
use urxe_tests::{DIAGNOSTICS, REFUSED_DIAGNOSTICS, artifacts};

fn help(command: &[&str]) -> Result<String> {
    let said = Command::new(artifacts::urxe()?).args(command).arg("--help").output()?;
    Ok(String::from_utf8(said.stdout)?)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Documents by their paths below `root`. The changelog is none: it names what is gone.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut documents = Vec::new();
    for path in [files(root, "md")?, vec![root.join("fuzz/README.md")]].concat() {
        documents.push(path.strip_prefix(root)?.to_owned());
    }
    documents.retain(|path| path != Path::new("CHANGELOG.md"));
    Ok(documents)
}

/// An empty line in the middle of a table makes rows without a header of what follows, which nobody renders as a table.
#[test]
fn tables_have_headers() -> Result<()> {
    let root = root();
    for document in documents(&root)? {
        let text = std::fs::read_to_string(root.join(&document))?;
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (number, rows) in (1..).zip(lines.windows(3)) {
            let begins = !rows[0].starts_with('|') && rows[1].starts_with('|');
            ensure!(
                !begins || rows[2].starts_with("|-"),
                "{}:{}: rows without a header",
                document.display(),
                number + 1
            );
        }
    }
    Ok(())
}

/// Names in the first column of the tables of a document.
fn first_column(text: &str) -> Vec<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name).collect()
}

#[test]
fn the_reference_lists_every_counter() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/reference/counters.md"))?;
    let mut listed = first_column(&text);
    let mut counters: Vec<&str> = urxe_status::names().collect();
    listed.sort_unstable();
    counters.sort_unstable();
    ensure!(listed == counters, "docs/reference/counters.md lists {listed:?}, and there are {counters:?}");
    Ok(())
}

/// Names, defaults, units and effects of the page are those of the engine.
#[test]
fn the_page_of_congestion_lists_every_parameter() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/internals/congestion.md"))?;
    let (_, section) = text.split_once("## Parameters\n").context("no section of parameters")?;
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let listed: Vec<Vec<&str>> = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let parameters = Parameters::ALL.iter().map(|parameter| {
        let unit = parameter.unit.replace('|', ", ");
        vec![format!("`{}`", parameter.name), parameter.default.to_string(), unit, parameter.help.to_owned()]
    });
    let parameters: Vec<Vec<String>> = parameters.collect();
    ensure!(listed == parameters, "docs/internals/congestion.md lists {listed:#?}, and there are {parameters:#?}");
    Ok(())
}

/// Commands that the first column of a table's row names, each as its words: those without a program are of the program before
/// them. LID and GUID stand for a host's.
fn commands_of(row: &str) -> Vec<Vec<&str>> {
    let mut commands: Vec<Vec<&str>> = Vec::new();
    for item in row.split('|').nth(1).unwrap_or_default().split(',').map(str::trim) {
        let mut words: Vec<&str> =
            item.split([' ', '`']).filter(|word| !matches!(*word, "" | "LID" | "GUID")).collect();
        let program = commands.last().and_then(|last| last.first().copied());
        if let Some(program) = program.filter(|_| !item.starts_with('`') || item.starts_with("`-")) {
            words.insert(0, program);
        }
        commands.push(words);
    }
    commands
}

/// Every program of the page has a test, and the page has every program that is tested.
#[test]
fn the_page_of_infiniband_lists_the_programs_of_its_tests() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/internals/infiniband.md"))?;
    let (_, programs) = text.split_once("### Programs\n").context("no programs")?;
    let listed: Vec<Vec<&str>> =
        programs.lines().filter(|line| line.starts_with("| `")).flat_map(commands_of).collect();
    let diagnostics = DIAGNOSTICS.iter().map(|(command, _)| *command);
    let refused = REFUSED_DIAGNOSTICS.iter().map(|(command, _)| *command);
    let tested: Vec<Vec<&str>> = diagnostics.chain(refused).map(|command| command.split(' ').collect()).collect();
    let is_of = |listed: &[&str], tested: &[&str]| {
        listed.first() == tested.first() && listed.iter().all(|word| tested.contains(word))
    };
    let others = concat!(include_str!("infiniband_opensm.rs"), include_str!("../src/opensm.rs"));
    for command in &listed {
        let is_other = command.first().is_some_and(|program| others.contains(&format!("\"{program}\"")));
        ensure!(is_other || tested.iter().any(|tested| is_of(command, tested)), "no test of {command:?}");
    }
    for command in &tested {
        ensure!(listed.iter().any(|listed| is_of(listed, command)), "the page has no {command:?}");
    }
    Ok(())
}

/// Crates of the workspace and those crates of it that each depends on, by `cargo metadata`.
fn crates(root: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = Command::new(cargo).args(arguments).current_dir(root).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let depends = |package: &Value| {
        let all = package["dependencies"].as_array().into_iter().flatten();
        all.filter(|it| it["kind"].is_null()).map(name).filter(|it| it.starts_with("urxe-")).collect()
    };
    Ok(packages.iter().map(|package| (name(package), depends(package))).collect())
}

#[test]
fn the_architecture_lists_every_crate_and_its_dependencies() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/internals/architecture.md"))?;
    let mut listed = BTreeMap::new();
    for row in text.lines().filter(|line| line.starts_with("| `urxe-")) {
        let mut cells = row.split('|').skip(1).map(|cell| {
            cell.split('`').skip(1).step_by(2).filter(|it| it.starts_with("urxe-")).map(str::to_owned).collect()
        });
        let (names, depends): (BTreeSet<String>, _) =
            (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        listed.insert(names.into_iter().collect(), depends);
    }
    let crates = crates(&root())?;
    ensure!(listed == crates, "docs/internals/architecture.md has {listed:#?}, and there are {crates:#?}");
    let words = text.split_whitespace().count();
    ensure!(words <= 1500, "docs/internals/architecture.md has {words} words");
    let performance = std::fs::read_to_string(root().join("docs/performance.md"))?;
    let words = performance.split_whitespace().count();
    ensure!(words <= 800, "docs/performance.md has {words} words");
    Ok(())
}

/// Groups of modules that import each other, each as its crate and its modules. Lines are `CRATE: MODULE, MODULE`.
fn circles<'a>(lines: impl Iterator<Item = &'a str>) -> Result<BTreeSet<Vec<&'a str>>> {
    lines
        .map(|line| {
            let (name, modules) = line.split_once(": ").with_context(|| line.to_owned())?;
            Ok(std::iter::once(name).chain(modules.split(", ")).collect())
        })
        .collect()
}

/// Modules that import each other are those that the section defends, each group in an item `` `CRATE`: `MODULE`, `MODULE`. Reason``.
#[test]
fn the_architecture_defends_modules_that_import_each_other() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/internals/architecture.md"))?.replace('`', "");
    let (_, section) = text.split_once("## Modules\n").context("no section of modules")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let items = section.lines().filter_map(|line| line.strip_prefix("- "));
    let defended = circles(items.map(|item| item.split(". ").next().unwrap_or_default()))?;
    let output = Command::new(root().join("scripts/counts")).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout)?;
    let mut lines = said.lines().skip_while(|line| !line.contains("groups of modules that import each other"));
    let count = lines.next().and_then(|line| line.split(' ').next()).context("scripts/counts counts no groups")?;
    let found = circles(lines.map_while(|line| line.strip_prefix("  ")))?;
    ensure!(count == found.len().to_string(), "scripts/counts says {count} groups and lists {found:?}");
    ensure!(found == defended, "import each other: {found:#?}; architecture.md defends {defended:#?}");
    Ok(())
}

#[test]
fn the_guide_lists_every_option() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/guide/configuration.md"))?;
    let listed: Vec<&str> = first_column(&text).into_iter().filter(|name| name.starts_with("--")).collect();
    let options: Vec<String> = urxe_options::ALL.iter().map(|option| format!("--{}", option.name)).collect();
    ensure!(listed == options, "docs/guide/configuration.md lists {listed:?}, and there are {options:?}");
    for option in urxe_options::ALL {
        ensure!(text.contains(option.variable), "{} is not named", option.variable);
    }
    Ok(())
}

#[test]
fn the_guide_has_the_grammar_of_faults() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/guide/debugging.md"))?;
    let grammar = include_str!("../../diag/faults/src/grammar.txt");
    ensure!(
        text.contains(&format!("```text\n{grammar}```\n")),
        "docs/guide/debugging.md lacks diag/faults/src/grammar.txt"
    );
    ensure!(help(&["faults"])?.contains(grammar.trim_end()), "urxe faults --help lacks diag/faults/src/grammar.txt");
    Ok(())
}

#[test]
fn documents_name_only_what_exists() -> Result<()> {
    let root = root();
    let mut all = vec![help(&[])?];
    let commands = commands(&all[0]);
    ensure!(commands.len() > 12, "only {commands:?} were found");
    for command in &commands {
        all.push(help(&[command])?);
    }
    all.push(help(&["ipoib", "up"])?);
    let things = Things::read(&root, &all)?;
    let documents = documents(&root)?;
    let mut missing = Vec::new();
    for document in &documents {
        missing.extend(things.missing(document)?.iter().map(ToString::to_string));
    }
    ensure!(documents.len() > 15, "only {} documents were found", documents.len());
    ensure!(missing.is_empty(), "{}", missing.join("\n"));
    Ok(())
}

/// Advice of the library names options that `urxe run` has.
#[test]
fn advice_names_only_options_that_exist() -> Result<()> {
    const RUN: &str = "urxe run --";
    let (root, mut count) = (root(), 0);
    for folder in ["provider/src", "diag", "runtime/src", "net/src"] {
        for path in files(&root.join(folder), "rs")? {
            let text = std::fs::read_to_string(&path)?;
            for (at, _) in text.match_indices(RUN) {
                let rest = text.get(at + RUN.len()..).unwrap_or_default();
                let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or_default();
                // `urxe run -- PROGRAM`
                let is_option = name.is_empty() || urxe_options::ALL.iter().any(|option| option.name == name);
                ensure!(is_option, "{}: urxe run has no --{name}", path.display());
                count += usize::from(!name.is_empty());
            }
        }
    }
    ensure!(count > 0, "no advice was found");
    Ok(())
}

/// Every line that the example of CONTRIBUTING adds is in the file that it names.
#[test]
fn the_example_of_a_change_is_in_the_sources() -> Result<()> {
    let root = root();
    let text = std::fs::read_to_string(root.join("CONTRIBUTING.md"))?;
    let example = text.split("```diff\n").nth(1).and_then(|rest| rest.split("```").next()).context("no example")?;
    let (mut file, mut added) = (String::new(), 0);
    for line in example.lines() {
        if let Some(path) = line.strip_prefix("--- ") {
            file = std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
        } else if let Some(line) = line.strip_prefix('+') {
            ensure!(file.contains(line.trim()), "CONTRIBUTING.md adds a line that is nowhere: {line}");
            added += 1;
        }
    }
    ensure!((1..40).contains(&added), "{added} lines");
    Ok(())
}

/// Doc comments that mean nothing on hover are listed by `scripts/doc-comments`.
#[test]
fn doc_comments_make_sense_alone() -> Result<()> {
    let output = Command::new(root().join("scripts/doc-comments")).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// A numbered step of `docs/internals/data-path.md`: a function, or one that only forwards to another of its name, and their files.
struct Step<'a> {
    line: &'a str,
    function: &'a str,
    /// Crate of its first file.
    home: &'a str,
    /// Code of the function in its files.
    code: String,
}

impl<'a> Step<'a> {
    /// Parses ``N. `FUNCTION` (FILE, FILE): …``.
    fn parse(line: &'a str, number: usize) -> Result<Self> {
        let rest = line.strip_prefix(&format!("{number}. `")).with_context(|| format!("no step {number}: {line}"))?;
        let (function, rest) = rest.split_once("` (").with_context(|| line.to_owned())?;
        let (files, _) = rest.split_once("): ").with_context(|| line.to_owned())?;
        let (home, _) = files.split_once('/').with_context(|| line.to_owned())?;
        let mut code = String::new();
        for file in files.split(", ") {
            let source = std::fs::read_to_string(root().join(file)).with_context(|| line.to_owned())?;
            let bodies = bodies_of(function, &source);
            ensure!(!bodies.is_empty(), "{line}: {file} has no such function");
            code += &bodies.concat();
        }
        Ok(Self { line, function, home, code })
    }

    fn calls(&self, function: &str) -> bool {
        self.code.match_indices(&format!("{function}(")).any(|(at, _)| {
            let before = self.code[..at].chars().next_back();
            before.is_none_or(|before| !before.is_alphanumeric() && before != '_')
        })
    }
}

/// The bodies of all functions of this name in a source file, without comments.
fn bodies_of(function: &str, source: &str) -> Vec<String> {
    let code: String =
        source.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let heads = [format!("fn {function}("), format!("fn {function}<")];
    let starts = heads.iter().flat_map(|head| code.match_indices(head.as_str()).map(|(at, head)| at + head.len() - 1));
    starts.filter_map(|at| body_at(&code[at..])).map(str::to_owned).collect()
}

/// The body behind the name of a function, from its brace to the one that ends it. `None`: it has no body.
fn body_at(signature: &str) -> Option<&str> {
    let (mut nested, mut braces, mut begin) = (0, 0, None);
    for (at, letter) in signature.char_indices() {
        match letter {
            '(' | '[' => nested += 1,
            ')' | ']' => nested -= 1,
            ';' if nested == 0 && begin.is_none() => return None,
            '{' => {
                begin.get_or_insert(at);
                braces += 1;
            }
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return signature.get(begin?..=at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The number before these words, if the text has them.
fn number_of(words: &str, text: &str) -> Option<usize> {
    text.split_once(words)?.0.rsplit(char::is_whitespace).next()?.parse().ok()
}

/// The lists of `docs/internals/data-path.md` are ways: each step is a function of its file that a step above it calls, so none between
/// them was forgotten, and there are as many functions and borders of crates as the text says.
#[test]
fn the_data_path_is_that_of_the_sources() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/internals/data-path.md"))?;
    let is_numbered = |line: &&str| line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    let (mut before, mut counted) = (Vec::new(), 0);
    for section in text.split("\n## ").skip(1) {
        let lines = section.lines().filter(is_numbered);
        let steps = lines.zip(1..).map(|(line, number)| Step::parse(line, number)).collect::<Result<Vec<_>>>()?;
        if steps.is_empty() {
            continue;
        }
        if !section.contains("is as above up to") {
            before.clear();
        }
        for (at, step) in steps.iter().enumerate() {
            let mut above = before.iter().chain(&steps[..at]);
            let is_first = at == 0 && before.is_empty();
            ensure!(is_first || above.any(|step_above| step_above.calls(step.function)), "no step calls {}", step.line);
        }
        if let Some(functions) = number_of(" functions", section) {
            ensure!(functions == steps.len(), "{} functions, not {functions}", steps.len());
            counted += 1;
        }
        if let Some(said) = number_of(" borders", section) {
            let borders = steps.windows(2).filter(|pair| pair[0].home != pair[1].home).count();
            ensure!(borders == said, "{borders} borders, not {said}");
            counted += 1;
        }
        before.extend(steps);
    }
    ensure!(counted == 4, "{counted} numbers of the text were compared");
    Ok(())
}
