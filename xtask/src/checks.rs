//! What can be known to be wrong before anything long is begun: the port is taken, the disk is full.

use std::env;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::project::Project;

const DEFAULT_ADDRESS: &str = "127.0.0.1:3000";
/// Spin's own variable for `--listen`.
const LISTEN_VARIABLE: &str = "SPIN_HTTP_LISTEN_ADDR";

/// Fails if `spinfer up` with these arguments could not listen. An address that can't be understood is left to it.
pub fn listen_address_is_free(args: &[String]) -> Result<()> {
    let address = listen_address(args, env::var(LISTEN_VARIABLE).ok());
    let Some(address) = address.to_socket_addrs().ok().and_then(|mut addresses| addresses.next())
    else {
        return Ok(());
    };
    can_listen(address)
}

fn listen_address(args: &[String], variable: Option<String>) -> String {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--listen" {
            return args.next().cloned().unwrap_or_default();
        }
        if let Some(address) = arg.strip_prefix("--listen=") {
            return address.to_owned();
        }
    }
    variable.unwrap_or_else(|| DEFAULT_ADDRESS.to_owned())
}

fn can_listen(address: SocketAddr) -> Result<()> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
            "{address} is in use by another program; stop that one, or choose another port: cargo xtask up --listen {}",
            SocketAddr::new(address.ip(), address.port().wrapping_add(1))
        ),
        Err(error) => bail!("it is not possible to listen on {address}: {error}"),
    }
}

/// What the disk must have room for.
#[derive(Clone, Copy)]
pub enum Work {
    Serve,
    Test,
}

impl Work {
    /// Bytes that a first build needs, models included: twice of what it was seen to take.
    fn first(self) -> u64 {
        match self {
            Work::Serve => 3_000_000_000,
            Work::Test => 8_000_000_000,
        }
    }
}

/// Bytes that a build after the first needs.
const LATER: u64 = 500_000_000;

/// Fails if there is no room for the build output.
pub fn disk_has_room(project: &Project, work: Work) -> Result<()> {
    let (need, build) =
        if project.host().exists() { (LATER, "a build") } else { (work.first(), "a first build") };
    has_room(&project.target, need, build)
}

/// Fails if the file system that will hold `folder` has less than `need` bytes for this user.
pub fn has_room(folder: &Path, need: u64, what: &str) -> Result<()> {
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let fs = rustix::fs::statvfs(existing)
        .with_context(|| format!("asking for the free space at {}", existing.display()))?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    if free < need {
        bail!(
            "{what} needs about {} of free disk space, and {} has {}; make room, or set CARGO_TARGET_DIR to a folder \
             on a larger disk",
            gigabytes(need),
            existing.display(),
            gigabytes(free)
        );
    }
    Ok(())
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(args: &[&str], variable: Option<&str>) -> String {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        listen_address(&args, variable.map(str::to_owned))
    }

    #[test]
    fn the_argument_wins_over_the_variable_over_the_default() {
        assert_eq!(address(&[], None), DEFAULT_ADDRESS);
        assert_eq!(address(&[], Some("0.0.0.0:80")), "0.0.0.0:80");
        assert_eq!(address(&["--quiet", "--listen", "[::]:1"], Some("0.0.0.0:80")), "[::]:1");
        assert_eq!(address(&["--listen=localhost:2"], None), "localhost:2");
        assert_eq!(address(&["--listen"], None), "");
    }

    #[test]
    fn a_port_in_use_is_named_with_a_way_out() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken_address = taken.local_addr().unwrap();
        let error = can_listen(taken_address).unwrap_err().to_string();
        assert!(
            error.contains(&taken_address.to_string()) && error.contains("--listen"),
            "{error}"
        );
        drop(taken);
        can_listen(taken_address).unwrap();
    }

    #[test]
    fn an_unreadable_address_is_left_to_the_server() {
        listen_address_is_free(&["--listen".into(), "not an address".into()]).unwrap();
    }

    #[test]
    fn too_little_room_says_how_much_is_needed_and_there() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("not/yet/there");
        has_room(&deep, 1, "a test").unwrap();
        let error = has_room(&deep, u64::MAX, "a test").unwrap_err().to_string();
        assert!(error.contains("a test needs about 18446744073.7 GB"), "{error}");
    }
}
