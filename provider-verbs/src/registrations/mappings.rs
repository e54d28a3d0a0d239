//! What the process has mapped where: `/proc/self/maps`, as proc_pid_maps(5) has it.

use std::{fs, io, ops::Range};

/// All mappings that `range` touches, where each is memory of the process's own, which no file and no
/// other process changes, and nothing between them is left out.
///
/// # Errors
/// `/proc` cannot be read.
pub fn own_memory_around(range: &Range<usize>) -> io::Result<Option<Range<usize>>> {
    Ok(own_memory(&fs::read_to_string("/proc/self/maps")?, range))
}

fn own_memory(maps: &str, range: &Range<usize>) -> Option<Range<usize>> {
    let mut found: Option<Range<usize>> = None;
    for mapping in maps.lines().filter_map(Mapping::parse) {
        if mapping.range.end <= range.start {
            continue;
        }
        let expected = found.as_ref().map_or(range.start, |found| found.end);
        if mapping.range.start > expected || !mapping.is_own {
            return None;
        }
        let start = found.map_or(mapping.range.start, |found| found.start);
        let end = mapping.range.end;
        found = Some(start..end);
        if end >= range.end {
            return found;
        }
    }
    None
}

struct Mapping {
    range: Range<usize>,
    /// Writable, private, and of no file. A stack grows by itself.
    is_own: bool,
}

impl Mapping {
    /// `start-end permissions offset device inode name`.
    fn parse(line: &str) -> Option<Mapping> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let permissions = fields.next()?;
        let inode = fields.nth(2)?;
        let name = fields.next().unwrap_or("");
        let is_plain = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
        let is_own = permissions.starts_with("rw") && permissions.ends_with('p') && inode == "0";
        Some(Mapping { range: address(start)?..address(end)?, is_own: is_own && is_plain })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 1234       /usr/bin/program
2000-3000 rw-p 00001000 fe:00 1234       /usr/bin/program
3000-8000 rw-p 00000000 00:00 0          [heap]
8000-9000 rw-p 00000000 00:00 0
9000-a000 rw-p 00000000 00:00 0          [anon: glibc: malloc arena]
b000-c000 rw-p 00000000 00:00 0
c000-d000 rw-s 00000000 00:01 77         /dev/zero (deleted)
d000-e000 r--p 00000000 00:00 0
f000-10000 rw-p 00000000 00:00 0         [stack]
";

    #[test]
    fn whole_mappings_of_own_memory_are_found() {
        let find = |start, end| own_memory(MAPS, &(start..end));
        assert_eq!(find(0x4000, 0x5000), Some(0x3000..0x8000));
        assert_eq!(find(0x3000, 0x8000), Some(0x3000..0x8000));
        assert_eq!(find(0x7fff, 0x9001), Some(0x3000..0xa000), "of several");
        assert_eq!(find(0xb800, 0xb900), Some(0xb000..0xc000));
    }

    #[test]
    fn what_is_a_files_or_shared_or_not_there_is_none() {
        let find = |start, end| own_memory(MAPS, &(start..end));
        for (start, end, why) in [
            (0x1000, 0x1100, "a file, read-only"),
            (0x2000, 0x2100, "a file"),
            (0x2f00, 0x3100, "it begins in a file"),
            (0x9f00, 0xb100, "a hole"),
            (0xa000, 0xa100, "nothing"),
            (0xb000, 0xc100, "it ends in shared memory"),
            (0xc000, 0xc100, "shared"),
            (0xd000, 0xd100, "read-only"),
            (0xf000, 0xf100, "the stack"),
            (0x1_0000, 0x1_1000, "beyond the last"),
        ] {
            assert_eq!(find(start, end), None, "{why}");
        }
        assert_eq!(own_memory("nonsense\n\n1-\n", &(0..1)), None);
    }

    #[test]
    fn this_processes_memory_is_its_own() {
        let memory = vec![1_u8; 1 << 20];
        let range = memory.as_ptr_range();
        let range = range.start.addr()..range.end.addr();
        let found = own_memory_around(&range).unwrap().unwrap();
        assert!(found.start <= range.start && range.end <= found.end);
        let code = own_memory_around as *const () as usize;
        assert_eq!(own_memory_around(&(code..code + 1)).unwrap(), None);
    }
}
