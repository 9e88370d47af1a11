//! The columns that the tables of a queue must have. Their owner can alter them.
//!
//! Where values meet, `src/pg/` compares types. This is for an error that says what is wrong, before
//! anything is read: with it, a queue whose tables have other columns cannot be opened.

use std::sync::OnceLock;

use pgrx::pg_sys::{self, Oid};

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::{catalog, relation};
use crate::store::queues::queue_tables;

/// A column as fetchq makes it.
struct Column {
    name: &'static str,
    /// The type as the statement has it that makes the table.
    declared: &'static str,
    oid: Oid,
}

/// Returns the type of a declaration. Its length does not matter: a shorter one gives an error of the
/// server where a value does not fit.
fn type_of(declared: &str) -> Option<Oid> {
    let name = declared.split('(').next()?;
    Some(match name {
        "int" => pg_sys::INT4OID,
        "bigint" => pg_sys::INT8OID,
        "text" => pg_sys::TEXTOID,
        "varchar" => pg_sys::VARCHAROID,
        "timestamptz" => pg_sys::TIMESTAMPTZOID,
        "jsonb" => pg_sys::JSONBOID,
        _ => return None,
    })
}

/// Reads the columns from the statement that makes a table. Each has a line of its own.
fn columns_of(create: &'static str) -> Vec<Column> {
    let column = |line: &'static str| {
        let mut words = line.strip_prefix("    ")?.split([' ', ',']);
        let (name, declared) = (words.next()?, words.next()?);
        let declared = declared.strip_prefix("pg_catalog.").unwrap_or(declared);
        let oid = type_of(declared)?;
        Some(Column {
            name,
            declared,
            oid,
        })
    };
    create.lines().filter_map(column).collect()
}

/// Checks that the tables of a queue have the columns that fetchq gave them, and others only beside
/// those. Returns the tables. One that does not exist has no wrong columns.
///
/// Fails with `Error::AlteredColumn`.
pub(in crate::store) fn require(name: &QueueName) -> Result<Vec<Oid>> {
    static EXPECTED: OnceLock<Vec<(&str, Vec<Column>)>> = OnceLock::new();
    let expected = EXPECTED.get_or_init(|| {
        let tables = queue_tables::DEFINITIONS.into_iter();
        tables
            .map(|(table, create)| (table, columns_of(create)))
            .collect()
    });
    let mut tables = Vec::with_capacity(expected.len());
    for (table, columns) in expected {
        let relation_name = name.relation(table);
        if let Some(table) = relation::lookup_data_table(&relation_name) {
            compare(table, &relation_name, columns)?;
            tables.push(table);
        }
    }
    Ok(tables)
}

/// Compares the columns of a table with those that it should have, by name. To find them takes one pass,
/// because they are in the same order in nearly every table.
fn compare(table: Oid, name: &str, expected: &[Column]) -> Result<()> {
    let found = catalog::columns(table);
    for (at, column) in expected.iter().enumerate() {
        let is_it = |found: &&catalog::TableColumn| found.name == column.name;
        let same = found.get(at).filter(is_it);
        let same = same.or_else(|| found.iter().find(is_it));
        if same.is_none_or(|same| same.oid != column.oid) {
            return Err(Error::AlteredColumn {
                table: name.to_owned(),
                column: column.name.to_owned(),
                found: same.map(catalog::TableColumn::type_name),
                expected: column.declared,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::documents_check::TYPES;

    #[test]
    fn every_column_is_known() {
        let tables = queue_tables::DEFINITIONS.map(|(_, create)| columns_of(create));
        let numbers: Vec<usize> = tables.iter().map(Vec::len).collect();
        assert_eq!(numbers, [23, 7, 4, 20]);
        let documents: Vec<Oid> = tables[0].iter().map(|column| column.oid).collect();
        assert_eq!(documents, TYPES);
        assert_eq!(tables[1][2].declared, "varchar(255)");
    }
}
