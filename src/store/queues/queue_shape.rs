//! The columns that the tables of a queue must have. Their owner can alter them.
//!
//! Where values meet, `src/pg/` compares types. This is for an error that says what is wrong, before
//! anything is read: with it, a queue whose tables have other columns cannot be opened. Where a table of
//! documents has all columns, it also says what else their owner has changed.

use std::sync::OnceLock;

use pgrx::pg_sys::Oid;

use crate::domain::document::{COLUMNS, Column, ColumnDef, DUE_KEY, PICK_KEY};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::catalog::{self, TableColumn};
use crate::pg::documents_check::type_oid;
use crate::pg::relation;
use crate::store::queues::queue_tables;

/// What the columns of a table of documents are like. One that is not as fetchq made it needs
/// statements.
#[derive(Clone, Copy, Default)]
pub struct DocumentColumns {
    /// Those that the trigger of the ready floors reads have their numbers.
    pub fit_floors: bool,
    /// There are no others, and have never been.
    pub are_known: bool,
    /// All have the numbers, the length and precision that they were given, and the same ones may be
    /// NULL. No other column demands a value or is computed.
    pub are_as_made: bool,
}

/// The tables of a queue whose columns were compared.
pub struct Shape {
    pub tables: Vec<Oid>,
    pub documents: DocumentColumns,
}

/// Checks that the tables of a queue have the columns that fetchq gave them, and others only beside
/// those. One that does not exist has no wrong columns.
///
/// Fails with `Error::AlteredColumn`.
pub(in crate::store) fn require(name: &QueueName) -> Result<Shape> {
    static EXPECTED: OnceLock<[(&str, Vec<ColumnDef>); 4]> = OnceLock::new();
    let expected = EXPECTED.get_or_init(queue_tables::columns);
    let mut shape = Shape {
        tables: Vec::with_capacity(expected.len()),
        documents: DocumentColumns::default(),
    };
    for (suffix, columns) in expected {
        let relation_name = name.relation(suffix);
        if let Some(table) = relation::lookup_data_table(&relation_name) {
            let found = catalog::columns(table);
            compare(&found, &relation_name, columns)?;
            if *suffix == "docs" {
                shape.documents = document_columns(&found);
            }
            shape.tables.push(table);
        }
    }
    Ok(shape)
}

/// Compares the columns of a table with those that it should have, by name. To find them takes one pass,
/// because they are in the same order in nearly every table.
fn compare(found: &[TableColumn], name: &str, expected: &[ColumnDef]) -> Result<()> {
    for (at, column) in expected.iter().enumerate() {
        let is_it = |found: &&TableColumn| found.name == column.name;
        let same = found.get(at).filter(is_it);
        let same = same.or_else(|| found.iter().find(is_it));
        if same.is_none_or(|same| same.oid != type_oid(column.type_)) {
            return Err(Error::AlteredColumn {
                table: name.to_owned(),
                column: column.name.to_owned(),
                found: same.map(TableColumn::type_name),
                expected: column.type_.name(),
            });
        }
    }
    Ok(())
}

fn document_columns(found: &[TableColumn]) -> DocumentColumns {
    let has_number = |column: &Column| {
        let at = found.get(*column as usize);
        at.is_some_and(|at| at.number == column.number() && at.name == column.name())
    };
    let has_numbers = Column::ALL.iter().all(has_number);
    let is_as_made = |at: &TableColumn| {
        let def = COLUMNS.iter().find(|def| def.name == at.name);
        !at.is_generated
            && at.not_null == def.is_some_and(|def| def.not_null)
            && def.is_none_or(|def| def.type_.modifier() == at.modifier)
    };
    let mut rest = found.iter().filter(|at| !at.is_dropped());
    DocumentColumns {
        fit_floors: PICK_KEY.iter().chain(&DUE_KEY).all(has_number),
        are_known: has_numbers && found.len() == COLUMNS.len(),
        are_as_made: has_numbers && rest.all(is_as_made),
    }
}
