//! The values of each type that a caller can get wrong.

use fetchq_client_tests::Argument;
use tokio_postgres::types::Type;

/// A value, by the name that tests/contract.json has for it, and as SQL. `{known}` is a queue or a subject
/// that exists.
pub type Given = (&'static str, &'static str);

const TEXTS: &[Given] = &[
    ("null", "null"),
    ("empty", "''"),
    ("control", "E'a\\nb'"),
    ("255 letters", "repeat('🙂', 255)"),
    ("256 letters", "repeat('🙂', 256)"),
    ("odd letters", "U&'\\202E\\0301\\FEFF\\200D%\\\\''\"'"),
    ("1 MB", "repeat('x', 1048576)"),
];

const INTS: &[Given] = &[
    ("null", "null"),
    ("0", "0"),
    ("negative", "-1"),
    ("least", "-2147483648"),
    ("greatest", "2147483647"),
];

const BIGINTS: &[Given] = &[
    ("null", "null"),
    ("0", "0"),
    ("negative", "-1"),
    ("greatest", "9223372036854775807"),
];

const BOOLEANS: &[Given] = &[("null", "null")];

const TIMES: &[Given] = &[
    ("null", "null"),
    ("infinity", "'infinity'"),
    ("-infinity", "'-infinity'"),
];

const INTERVALS: &[Given] = &[
    ("null", "null"),
    ("zero", "'0'"),
    ("negative", "'-1s'"),
    ("negative in sum", "'1 mon -31 days'"),
    ("too long", "'300000 years'"),
    ("longest", "'178000000 years'"),
];

/// Since PostgreSQL 17.
const INFINITE: &[Given] = &[("infinity", "'infinity'"), ("-infinity", "'-infinity'")];

const JSONS: &[Given] = &[
    ("null", "null"),
    ("JSON null", "'null'"),
    ("number", "'1'"),
    ("huge number", "'1e10000'"),
    ("text", "'\"x\"'"),
    ("list", "'[]'"),
    ("list of a number", "'[1]'"),
    ("list of 100,000", "(select docs from big)"),
    (
        "duplicates",
        "'[{\"subject\": \"d\"}, {\"subject\": \"d\"}]'",
    ),
    ("object", "'{}'"),
    ("unknown key", "'{\"nope\": 1}'"),
    ("1 MB", "(select to_jsonb(x) from big)"),
    ("1 MB key", "(select jsonb_build_object(x, 1) from big)"),
    ("deep", "(repeat('[', 5000) || repeat(']', 5000))::jsonb"),
];

const TEXT_LISTS: &[Given] = &[
    ("null", "null"),
    ("empty", "'{}'"),
    ("with null", "array['{known}', null]"),
    ("duplicates", "array['{known}', '{known}']"),
    (
        "two dimensions",
        "array[array['{known}'], array['{known}']]",
    ),
    ("256 letters", "array[repeat('🙂', 256)]"),
    ("1 MB", "array[repeat('x', 1048576)]"),
    (
        "100,000",
        "(select array_agg('s' || n) from generate_series(1, 100000) n)",
    ),
];

const INT_LISTS: &[Given] = &[
    ("null", "null"),
    ("empty", "'{}'"),
    ("with null", "'{null}'"),
    ("0", "'{0}'"),
    ("negative", "'{-1}'"),
    ("two", "'{1, 2}'"),
    ("two dimensions", "'{{1}}'"),
];

const JSON_LISTS: &[Given] = &[
    ("null", "null"),
    ("empty", "'{}'"),
    ("with null", "'{null}'"),
    ("one", "array['{}'::jsonb]"),
    ("two", "array['{}', '[]']::jsonb[]"),
    ("two dimensions", "array[array['{}', '{}']]::jsonb[]"),
    ("1 MB", "array[(select to_jsonb(x) from big)]"),
    ("100,000", "array_fill('{}'::jsonb, array[100000])"),
];

const FLOATS: &[Given] = &[
    ("null", "null"),
    ("0", "0"),
    ("negative", "-1"),
    ("NaN", "'NaN'"),
    ("infinity", "'infinity'"),
];

const SETTLEMENTS: &[Given] = &[
    (
        "100,000",
        "(select jsonb_agg(s || '{\"action\": \"drop\"}') from big, jsonb_array_elements(docs) s)",
    ),
    (
        "the same twice",
        "'[{\"subject\": \"active\", \"action\": \"drop\"}, {\"subject\": \"active\", \"action\": \"kill\"}]'",
    ),
    (
        "negative delay",
        "'[{\"subject\": \"active\", \"action\": \"snooze\", \"delay\": \"-1s\"}]'",
    ),
    (
        "delay that is too long",
        "'[{\"subject\": \"active\", \"action\": \"snooze\", \"delay\": \"178000000 years\"}]'",
    ),
    (
        "unknown key of one",
        "'[{\"subject\": \"active\", \"action\": \"drop\", \"nope\": 1}]'",
    ),
    (
        "256 letters",
        "jsonb_build_array(jsonb_build_object('subject', repeat('🙂', 256), 'action', 'drop'))",
    ),
    (
        "1 MB message",
        "(select jsonb_build_array(jsonb_build_object('subject', 'active', 'action', 'reject', 'message', x)) from big)",
    ),
];

const EXTENSIONS: &[Given] = &[
    (
        "100,000",
        "(select jsonb_agg(s || '{\"lease\": 7}') from big, jsonb_array_elements(docs) s)",
    ),
    (
        "the same twice",
        "'[{\"subject\": \"active\", \"lease\": 7}, {\"subject\": \"active\", \"lease\": 7}]'",
    ),
    ("without a lease", "'[{\"subject\": \"active\"}]'"),
    (
        "no lease",
        "'[{\"subject\": \"active\", \"lease\": \"x\"}]'",
    ),
    (
        "bad queue",
        "'[{\"subject\": \"active\", \"lease\": 7, \"queue\": \"no queue\"}]'",
    ),
    (
        "256 letters",
        "jsonb_build_array(jsonb_build_object('subject', repeat('🙂', 256), 'lease', 7))",
    ),
];

/// The values for an argument.
pub fn values(argument: &Argument, knows_infinity: bool) -> Vec<Given> {
    let ty = &argument.ty;
    let list = match *ty {
        Type::TEXT => TEXTS,
        Type::INT4 => INTS,
        Type::INT8 => BIGINTS,
        Type::BOOL => BOOLEANS,
        Type::TIMESTAMPTZ => TIMES,
        Type::INTERVAL => INTERVALS,
        Type::JSONB => JSONS,
        Type::TEXT_ARRAY => TEXT_LISTS,
        Type::INT4_ARRAY => INT_LISTS,
        Type::JSONB_ARRAY => JSON_LISTS,
        Type::FLOAT8 => FLOATS,
        ref other => panic!("matrix/given.rs has no values of type {other}"),
    };
    let more = match *ty {
        Type::INTERVAL if knows_infinity => INFINITE,
        Type::JSONB if argument.name == "settlements" => SETTLEMENTS,
        Type::JSONB if argument.name == "extensions" => EXTENSIONS,
        _ => &[],
    };
    list.iter().chain(more).copied().collect()
}
