//! The documentation: its SQL runs, its links have targets, and its reference is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fetchq_client_tests::{Server, Session, error_of, state_of};
use tokio_postgres::SimpleQueryMessage;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown files in a folder of the repository, at any depth.
fn markdown_below(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder)
        .expect("read the folder")
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "node_modules" {
            pages.extend(markdown_below(&path));
        } else if path.extension().is_some_and(|e| e == "md") {
            pages.push(path);
        }
    }
    pages
}

/// README.md and the pages of docs/, at any depth.
fn pages() -> Vec<PathBuf> {
    let mut pages = markdown_below(&root().join("docs"));
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

/// The path of a page, for messages.
fn name_of(page: &Path) -> String {
    page.strip_prefix(root())
        .unwrap_or(page)
        .display()
        .to_string()
}

/// The blocks marked as `sql`, with the number of their first line. `sql skip` marks a block
/// that cannot run in this test.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, bool, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.trim_start();
        match &mut open {
            Some((start, runs, block)) if fence.starts_with("```") => {
                if *runs {
                    blocks.push((*start, std::mem::take(block)));
                }
                open = None;
            }
            Some((_, _, block)) => {
                block.push_str(line);
                block.push('\n');
            }
            None if fence.starts_with("```") => {
                open = Some((number + 1, fence.trim() == "```sql", String::new()))
            }
            None => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// Splits SQL at semicolons outside of quotes, dollar quotes and comments, and after `\gset` of psql,
/// which stays at the end of its statement. Each statement has the number of its first line, counted
/// from 0.
fn statements(sql: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut rest = sql;
    let mut statement = String::new();
    let mut take = |statement: &mut String, rest: &str| {
        let done = std::mem::take(statement);
        if !done.trim().is_empty() {
            let end = sql.len() - rest.len();
            let start = end - done.len() + (done.len() - done.trim_start().len());
            found.push((sql[..start].matches('\n').count(), done.trim().to_owned()));
        }
    };
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\\' if rest.starts_with("\\gset") => rest.find('\n').unwrap_or(rest.len()),
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |i| i + 2),
            '\'' | '"' => rest[1..].find(c).map_or(rest.len(), |i| i + 2),
            '$' => match rest[1..].find('$').map(|i| &rest[..i + 2]) {
                Some(tag)
                    if tag[1..tag.len() - 1]
                        .chars()
                        .all(|c| c.is_alphanumeric() || c == '_')
                        && !tag[1..].starts_with(|c: char| c.is_ascii_digit()) =>
                {
                    rest[tag.len()..]
                        .find(tag)
                        .map_or(rest.len(), |i| i + 2 * tag.len())
                }
                _ => 1,
            },
            c => c.len_utf8(),
        };
        // A comment becomes blanks, so that positions stay the same and a lone comment is empty.
        if rest.starts_with("--") || rest.starts_with("/*") {
            statement.extend(
                rest[..length]
                    .bytes()
                    .map(|b| if b == b'\n' { '\n' } else { ' ' }),
            );
        } else if c != ';' {
            statement.push_str(&rest[..length]);
        }
        rest = &rest[length..];
        match c {
            ';' => take(&mut statement, &sql[sql.len() - rest.len() - 1..]),
            '\\' if statement.contains("\\gset") => take(&mut statement, rest),
            _ => {}
        }
    }
    take(&mut statement, "");
    found
}

/// Replaces the variables of psql in a statement: `:name` and `:'name'`.
fn with_variables(statement: &str, variables: &BTreeMap<String, String>) -> String {
    let mut sql = statement.to_owned();
    for (name, value) in variables {
        sql = sql.replace(
            &format!(":'{name}'"),
            &format!("'{}'", value.replace('\'', "''")),
        );
        let plain = format!(":{name}");
        let mut parts = sql.split(&plain);
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let goes_on = part.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            match goes_on || replaced.ends_with(':') {
                true => replaced += &plain,
                false => replaced += value,
            }
            replaced += part;
        }
        sql = replaced;
    }
    sql
}

/// Runs a statement of a page as psql does. One that ends with `\gset` sets variables to the columns
/// of its row.
async fn run(
    session: &Session,
    statement: &str,
    variables: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    let (sql, sets) = match statement.split_once("\\gset") {
        Some((sql, prefix)) => (sql, Some(prefix.trim())),
        None => (statement, None),
    };
    let sql = with_variables(sql, variables);
    let answer = session.simple_query(&sql).await;
    let answer = answer.map_err(|e| format!("{} {}", state_of(&e), error_of(&e).message()))?;
    let Some(prefix) = sets else {
        return Ok(());
    };
    let rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let rows: Vec<_> = rows.collect();
    let [row] = rows[..] else {
        return Err(format!("{} rows for \\gset", rows.len()));
    };
    for (at, column) in row.columns().iter().enumerate() {
        let value = row.get(at).unwrap_or_default().to_owned();
        variables.insert(format!("{prefix}{}", column.name()), value);
    }
    Ok(())
}

#[test]
fn statements_are_split() {
    let sql = "select 1; -- one; two\nselect ';', \";\", $$;$$, $x$ ; $$ $x$ /* ; */;\n\nselect $1";
    let found: Vec<(usize, String)> = statements(sql);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!((found[0].0, found[0].1.as_str()), (0, "select 1"));
    assert_eq!(found[1].0, 1);
    assert_eq!((found[2].0, found[2].1.as_str()), (3, "select $1"));
    let sql = "select 1 as a \\gset\nselect :a, :'a', '\\gset', x::a, :ab;\n";
    let found: Vec<(usize, String)> = statements(sql);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        (found[0].0, found[0].1.as_str()),
        (0, "select 1 as a \\gset")
    );
    let variables = BTreeMap::from([("a".to_owned(), "it's".to_owned())]);
    assert_eq!(
        (found[1].0, with_variables(&found[1].1, &variables).as_str()),
        (1, "select it's, 'it''s', '\\gset', x::a, :ab")
    );
    assert_eq!(
        blocks("```sql\na\n```\n```sql skip\nb\n```\n```sh\nc\n```\n  ```sql\nd\n  ```\n"),
        [(2, "a\n".into()), (11, "d\n".into())]
    );
}

#[tokio::test]
async fn the_sql_of_every_page_runs() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("read the page");
        let name = name_of(&page);
        let blocks = blocks(&text);
        if blocks.is_empty() {
            continue;
        }
        let statements: Vec<(usize, String)> = blocks
            .iter()
            .flat_map(|(line, block)| {
                statements(block)
                    .into_iter()
                    .map(move |(offset, s)| (line + offset, s))
            })
            .collect();
        // A page that creates the extension itself gets an empty database.
        let creates = statements
            .iter()
            .any(|(_, s)| s.to_lowercase().starts_with("create extension"));
        let server = Server::of_suite();
        let roles = "select quote_ident(rolname) from pg_roles";
        let admin = server.connect("postgres").await;
        let before = admin.column(roles).await;
        let db = if creates {
            server.empty_database("readme").await
        } else {
            server.database("readme").await
        };
        let session = db.connect().await;
        // As a reader has it.
        session.sql("set fetchq.queue_defaults = ''").await;
        let mut variables = BTreeMap::new();
        for (line, statement) in statements {
            if let Err(e) = run(&session, &statement, &mut variables).await {
                wrong.push(format!("{name}:{line}: {statement}\n  {e}"));
            }
        }
        drop(session);
        db.remove().await;
        // Roles belong to the server, so dropping the database does not remove them.
        for role in admin.column(roles).await {
            if !before.contains(&role) {
                admin.sql(&format!("drop role {role}")).await;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The lines of a page outside of code blocks, with their numbers, and without inline code.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            // Every second part is between backticks.
            let parts = line.split('`').step_by(2);
            lines.push((number, parts.collect::<Vec<_>>().join("`")));
        }
    }
    lines
}

/// The targets of the links and pictures of a page, with the numbers of their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        for part in line.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            links.push((number, target.to_owned()));
        }
    }
    links
}

/// The anchors that GitHub gives to the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let title = line.trim_start_matches('#');
        if is_code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        // A repeated heading gets a number.
        let unique = (1..).map(|n| format!("{slug}-{n}"));
        let free = std::iter::once(slug.clone())
            .chain(unique)
            .find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn links_and_anchors_are_found() {
    let page = "# A `b_c`: d, 2\n[x](y.md#z) `[no](no)` ![p](q.svg)\n```\n# no\n[no](no)\n```\n## Twice\n## Twice\n";
    assert_eq!(links(page), [(2, "y.md#z".into()), (2, "q.svg".into())]);
    let found: Vec<String> = anchors(page).into_iter().collect();
    assert_eq!(found, ["a-b_c-d-2", "twice", "twice-1"]);
}

#[test]
fn every_link_has_a_target() {
    let mut pages = pages();
    for page in ["CONTRIBUTING.md", "CHANGELOG.md"] {
        pages.push(root().join(page));
    }
    for folder in ["bench", "examples"] {
        pages.extend(markdown_below(&root().join(folder)));
    }
    let mut wrong = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("read the page");
        for (line, link) in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.with_file_name("").join(path),
            };
            let is_page = target.extension().is_some_and(|e| e == "md");
            if !target.exists() {
                wrong.push(format!("{}:{line}: {path} does not exist", name_of(&page)));
            } else if !anchor.is_empty() && is_page {
                let text = std::fs::read_to_string(&target).expect("read the target");
                if !anchors(&text).contains(anchor) {
                    wrong.push(format!("{}:{line}: no heading for {link}", name_of(&page)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn the_reference_lists_every_function() {
    let text: String = ["functions.md", "functions-fetchq4.md"]
        .map(|page| root().join("docs/reference").join(page))
        .map(|page| {
            std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()))
        })
        .concat();
    let listed: Vec<String> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("- `")?
                .split_once("`: ")
                .map(|(call, _)| call.to_owned())
        })
        .filter(|call| call.contains('('))
        .collect();
    let db = Server::of_suite().database("reference").await;
    let session = db.connect().await;
    // The names and types of input arguments only, as in the catalog.
    let sql = "select p.proname || '(' || coalesce((
            select string_agg(p.proargnames[a.i] || ' ' || format_type(p.proargtypes[a.i - 1], null), ', ' order by a.i)
            from generate_series(1, p.pronargs) a (i)), '') || ')'
        from pg_proc p where p.pronamespace = 'fetchq'::regnamespace
            and not (p.prorettype = 'trigger'::regtype and p.proname <> 'trigger_notify_as_json')";
    let there: BTreeSet<String> = session.column(sql).await.into_iter().collect();
    let unique: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(unique.len(), listed.len(), "a function is listed twice");
    // The page may list the trigger functions too.
    let missing: Vec<_> = there
        .difference(&unique)
        .filter(|f| !f.starts_with("trigger_"))
        .collect();
    let unknown: Vec<_> = unique
        .difference(&there)
        .filter(|f| !f.starts_with("trigger_"))
        .collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "missing: {missing:#?}\nnot in the catalog: {unknown:#?}"
    );
    db.remove().await;
}
