//! The rules of layer 5, for every function of the catalog: it has one form, which resolves without
//! the types of its arguments; counts are called `affected`, wide results have a type, and everything
//! has a comment.

use std::collections::{BTreeMap, BTreeSet};

use fetchq_client_tests::{Server, Session, calls, error_of, is_layer5, is_of_both};

/// Their overloads are about to go. Remove a name here as soon as it has one form.
const OVERLOADED: &[&str] = &[];

/// It settles as doc_reject and doc_reschedule do, and workers read the results of all of them alike.
const RESULT_OF_FETCHQ_4: &str = "doc_snooze";

/// A form of a function or procedure of layer 5.
struct Form {
    name: String,
    is_procedure: bool,
    inputs: Vec<String>,
    /// How many of the inputs have no default; they come first.
    required: usize,
    /// The names and types of the result columns.
    columns: Vec<(String, String)>,
    /// Whether the result is a named composite type.
    has_named_type: bool,
    comment: String,
}

const FORMS: &str = "
    select p.proname::text, p.prokind = 'p', inputs.names, (p.pronargs - p.pronargdefaults)::int,
        case when t.typtype = 'c' then fields.names else outputs.names end,
        case when t.typtype = 'c' then fields.types else outputs.types end,
        t.typtype = 'c', coalesce(obj_description(p.oid, 'pg_proc'), '')
    from pg_proc p
    join pg_type t on t.oid = p.prorettype,
    lateral (select coalesce(array_agg(p.proargnames[i] order by i), '{}') as names
        from generate_series(1, cardinality(coalesce(p.proallargtypes, p.proargtypes::oid[]))) i
        where coalesce(p.proargmodes[i], 'i') in ('i', 'b')) as inputs,
    lateral (select coalesce(array_agg(p.proargnames[i] order by i), '{}') as names,
            coalesce(array_agg(format_type(p.proallargtypes[i], null) order by i), '{}') as types
        from generate_series(1, cardinality(p.proallargtypes)) i
        where p.proargmodes[i] in ('o', 'b', 't')) as outputs,
    lateral (select array_agg(a.attname::text order by a.attnum) as names,
            array_agg(format_type(a.atttypid, null) order by a.attnum) as types
        from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0) as fields
    where p.pronamespace = 'fetchq'::regnamespace and p.prorettype <> 'trigger'::regtype
    order by 1, p.oid";

/// All forms of the functions of layer 5.
async fn layer5(session: &Session) -> Vec<Form> {
    let rows = session.query(FORMS, &[]).await.expect("pg_proc");
    let forms: Vec<Form> = (rows.iter())
        .map(|row| {
            let names: Vec<String> = row.get(4);
            let types: Vec<String> = row.get(5);
            Form {
                name: row.get(0),
                is_procedure: row.get(1),
                inputs: row.get(2),
                required: row.get::<_, i32>(3) as usize,
                columns: names.into_iter().zip(types).collect(),
                has_named_type: row.get(6),
                comment: row.get(7),
            }
        })
        .filter(|form| is_layer5(&form.name))
        .collect();
    assert!(forms.len() > 60, "only {} functions", forms.len());
    forms
}

impl Form {
    fn statement(&self, arguments: &[String]) -> String {
        let verb = if self.is_procedure {
            "call"
        } else {
            "select * from"
        };
        format!("{verb} fetchq.{}({})", self.name, arguments.join(", "))
    }

    /// The calls that must resolve: by name with any subset of the options, and by position with the
    /// first of them.
    fn statements(&self) -> Vec<String> {
        let options = self.inputs.len() - self.required;
        // All subsets, or for many options those of one, of two, and of all.
        let subsets = (0..1u32 << options)
            .filter(|s| options <= 6 || s.count_ones() <= 2 || s.count_ones() as usize == options);
        let mut statements: Vec<String> = subsets
            .map(|subset| {
                let arguments: Vec<String> = (self.inputs.iter().enumerate())
                    .filter(|(i, _)| *i < self.required || subset >> (i - self.required) & 1 == 1)
                    .enumerate()
                    .map(|(n, (_, name))| format!("{name} => ${}", n + 1))
                    .collect();
                self.statement(&arguments)
            })
            .collect();
        statements.extend((self.required..=self.inputs.len()).map(|n| {
            let arguments: Vec<String> = (1..=n).map(|i| format!("${i}")).collect();
            self.statement(&arguments)
        }));
        statements
    }
}

#[tokio::test]
async fn every_function_resolves_without_types_by_name_and_by_position() {
    let db = Server::of_suite().database("untyped_calls").await;
    let session = db.connect().await;
    let mut wrong = Vec::new();
    let mut tried = 0;
    for form in layer5(&session).await {
        if OVERLOADED.contains(&form.name.as_str()) {
            continue;
        }
        for statement in form.statements() {
            tried += 1;
            if let Err(e) = session.prepare(&statement).await {
                wrong.push(format!("{statement}: {}", error_of(&e)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 500, "only {tried} calls");
    db.remove().await;
}

#[tokio::test]
async fn no_function_of_layer_5_has_overloads() {
    let db = Server::of_suite().database("overloads").await;
    let session = db.connect().await;
    let mut forms: BTreeMap<String, usize> = BTreeMap::new();
    for form in layer5(&session).await {
        *forms.entry(form.name).or_default() += 1;
    }
    let found: Vec<&String> = (forms.iter().filter(|(_, n)| **n > 1))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        found, OVERLOADED,
        "these functions have overloads, and these may: make one form with options, or declare it \
         in src/fetchq4/sql/ if it is a call of fetchq 4"
    );
    db.remove().await;
}

/// A function that is new must have a call that all drivers make.
#[tokio::test]
async fn every_function_has_an_entry_in_the_contract() {
    let db = Server::of_suite().database("calls_complete").await;
    let session = db.connect().await;
    let mut entries: BTreeMap<String, _> = (calls().into_iter())
        .map(|call| (call.name.clone(), call))
        .collect();
    let mut wrong = Vec::new();
    let mut forms: BTreeMap<String, Vec<Form>> = BTreeMap::new();
    for form in layer5(&session).await {
        forms.entry(form.name.clone()).or_default().push(form);
    }
    for (name, forms) in forms {
        let wanted: Vec<BTreeSet<&String>> =
            forms.iter().map(|f| f.inputs.iter().collect()).collect();
        let form = &forms[0];
        let skeleton: Vec<String> = (form.inputs.iter())
            .map(|argument| format!("\"{argument}\": …"))
            .collect();
        let procedure = if form.is_procedure {
            "\"procedure\": true, "
        } else {
            ""
        };
        let add = format!(
            "    \"{name}\": {{{procedure}\"arguments\": {{{}}}, \"rows\": 1, \"check\": \"select …\", \"needs\": \"reader\"}},",
            skeleton.join(", ")
        );
        match entries.remove(&name) {
            None => wrong.push(format!("tests/contract.json: add\n{add}")),
            Some(call) => {
                let given: BTreeSet<&String> = call.arguments.keys().collect();
                if !wanted.contains(&given) || call.is_procedure != form.is_procedure {
                    wrong.push(format!(
                        "tests/contract.json: {name} must name every argument:\n{add}"
                    ));
                }
            }
        }
    }
    for name in entries.keys() {
        wrong.push(format!(
            "tests/contract.json: layer 5 has no function {name}: remove it"
        ));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    db.remove().await;
}

#[tokio::test]
async fn rows_are_counted_as_affected_and_wide_results_have_a_type() {
    let db = Server::of_suite().database("results").await;
    let session = db.connect().await;
    let mut wrong = Vec::new();
    for form in layer5(&session).await {
        let name = &form.name;
        if form.comment.is_empty() || form.comment.contains('\n') || form.comment.ends_with('.') {
            wrong.push(format!(
                "{name}: its comment must be one sentence without a full stop: {:?}",
                form.comment
            ));
        }
        // The results of fetchq 4 stay as they are.
        if is_of_both(name) || name == RESULT_OF_FETCHQ_4 {
            continue;
        }
        // A procedure has no type of its result.
        if form.columns.len() > 3 && !form.has_named_type && name != "worker_wait" {
            wrong.push(format!(
                "{name}: {} result columns without a type of their own: create type fetchq.…",
                form.columns.len()
            ));
        }
        for (column, ty) in &form.columns {
            let counts = ["_rows", "_docs", "_count", "affected", "inserts"];
            let is_count = counts.iter().any(|end| column.ends_with(end));
            if is_count && (column != "affected" || ty != "bigint") {
                wrong.push(format!(
                    "{name}: a count of rows is \"affected bigint\", not \"{column} {ty}\""
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    db.remove().await;
}
