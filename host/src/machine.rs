//! What this machine has, as far as the process may use it.

use std::fs;
use std::path::Path;

/// The memory in bytes: the machine's or, in a container or a unit that may have less, that.
pub fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram as u64 * u64::from(info.mem_unit);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit(&groups, Path::new("/sys/fs/cgroup")).map_or(machine, |limit| machine.min(limit))
}

/// The smallest limit of the control groups (version 2) that a process is in. `groups` is its
/// `/proc/PID/cgroup`; `root` is where they are mounted, which in a container is its own group.
fn limit(groups: &str, root: &Path) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(path);
    let with_parents = group.ancestors().take_while(|group| group.starts_with(root));
    with_parents
        .filter_map(|group| fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let set = |group: &str, max: &str| {
            fs::create_dir_all(root.path().join(group)).unwrap();
            fs::write(root.path().join(group).join("memory.max"), max).unwrap();
        };
        let found = |groups: &str| limit(groups, root.path());
        set("a/b", "max\n");
        assert_eq!(found("0::/a/b\n"), None);
        set("a", "2147483648\n");
        assert_eq!(found("1:name=x:/\n0::/a/b\n"), Some(2 << 30));
        set("a/b", "1073741824\n");
        assert_eq!(found("0::/a/b\n"), Some(1 << 30));
        assert_eq!(found("0::/a\n"), Some(2 << 30));
        assert_eq!(found("0::/elsewhere\n"), None);
        assert_eq!(found("4:memory:/a\n"), None);
        set("", "5\n");
        assert_eq!(found("0::/\n"), Some(5));
    }

    #[test]
    fn there_is_some() {
        assert!(memory() > 1 << 20);
    }
}
