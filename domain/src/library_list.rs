//! Lists of libraries, as the setting `shared_preload_libraries` has them.

/// Returns whether a list has a library of this name, with whatever folder and ending.
pub fn has_library(list: &str, name: &str) -> bool {
    names(list).iter().any(|path| {
        let file = path.rsplit('/').next().unwrap_or(path);
        // The ending differs between systems.
        let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
        stem == name
    })
}

/// The names in a list: separated by commas, with or without quotes. A quote within quotes is doubled.
/// Spaces around a name do not count.
fn names(list: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let (mut is_quoted, mut was_quoted) = (false, false);
    for c in list.chars() {
        let Some(name) = names.last_mut() else {
            break;
        };
        match c {
            '"' if is_quoted => (is_quoted, was_quoted) = (false, true),
            '"' => {
                if was_quoted {
                    name.push('"');
                }
                is_quoted = true;
            }
            ',' if !is_quoted => names.push(String::new()),
            _ => name.push(c),
        }
        was_quoted &= c == '"';
    }
    names.iter().map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_however_the_list_names_it() {
        for list in [
            "citus",
            "citus,fetchq",
            "citus, fetchq",
            "fetchq ,  citus ",
            "\tcitus\n,fetchq",
            "\"citus\",fetchq",
            "\"citus\" , \"fetchq\"",
            "$libdir/citus",
            "\"$libdir/citus\", fetchq",
            "/usr/lib/postgresql/15/lib/citus.so,fetchq",
            "\"/a folder, with a comma/citus.so\"",
            "\"/a \"\"quoted\"\" folder/citus.dylib\"",
            "pg_stat_statements,citus,fetchq,pg_cron",
        ] {
            assert!(has_library(list, "citus"), "{list}");
        }
        for list in [
            "",
            ",",
            "fetchq",
            "citus_columnar",
            "my_citus,fetchq",
            "/opt/citus/lib/fetchq.so",
            "\"fetchq,citus\"",
            "\"citus,fetchq\"",
            "Citus",
        ] {
            assert!(!has_library(list, "citus"), "{list}");
        }
    }

    #[test]
    fn a_list_has_the_names_that_the_server_reads() {
        assert_eq!(
            names("a, \"b, c\" ,\"d \"\"e\"\"\""),
            ["a", "b, c", "d \"e\""]
        );
        assert_eq!(names("\"\"\"a\"\"\""), ["\"a\""]);
        assert_eq!(names("\"a"), ["a"]);
    }
}
