//! The state of one instance and the imports that it is given.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use wasmtime::component::{Linker, ResourceTable};
use wasmtime::{Engine, Store, StoreLimits, StoreLimitsBuilder, UpdateDeadline};
use wasmtime_wasi::{
    FsPerms, HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView,
};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::guest_log::GuestLog;
use super::outbound::{Outbound, allow_sockets};
use super::variables::{self, VariablesState, VariablesView};
use crate::app::files::{MODELS, Mounts};
use crate::app::outbound::AllowedHosts;
use crate::nn::Registry;
use crate::nn::wit::{self, NnCtx, NnState, NnView, Used};

/// What one instance may use; one that uses more ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of each of its memories.
    pub memory: usize,
    /// Epochs that it may run on its own, between two calls of `compute`.
    pub ticks: u32,
}

impl Limits {
    /// Loading tokenizers takes what it takes.
    const WHILE_FROZEN: Self = Self { memory: 4 << 30, ticks: u32::MAX };
}

/// What a component's instances have in common.
#[derive(Clone)]
pub struct Grants {
    /// The component's id.
    pub component: Arc<str>,
    /// Its environment.
    pub environment: Arc<BTreeMap<String, String>>,
    /// Its variables.
    pub variables: Arc<BTreeMap<String, String>>,
    /// The folder that it sees as [`MODELS`], if it may use any.
    pub models: Option<Arc<Path>>,
    /// Its files.
    pub mounts: Arc<Mounts>,
    /// Whether it may write there.
    pub writes: bool,
    /// The hosts that it may connect to.
    pub allowed_hosts: Arc<AllowedHosts>,
    /// Their limits.
    pub limits: Limits,
}

/// The state of one instance.
pub struct InstanceState {
    table: ResourceTable,
    wasi: WasiCtx,
    http: WasiHttpCtx,
    outbound: Outbound,
    variables: Arc<BTreeMap<String, String>>,
    nn: NnCtx,
    limits: StoreLimits,
}

impl InstanceState {
    /// The state of a new instance that is to answer the request of that id.
    pub fn new(grants: &Grants, nn: NnCtx, request: &Arc<str>) -> wasmtime::Result<Self> {
        let log = GuestLog { component: grants.component.clone(), request: request.clone() };
        let mut wasi = WasiCtxBuilder::new();
        wasi.stdout(log.clone()).stderr(log);
        for (name, value) in grants.environment.iter() {
            wasi.env(name, value);
        }
        if let Some(models) = &grants.models {
            wasi.preopened_dir(models, MODELS, FsPerms::ReadOnly)?;
        }
        let permissions = if grants.writes { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
        for mount in &grants.mounts.folders {
            wasi.preopened_dir(&mount.host, &mount.guest, permissions)?;
        }
        allow_sockets(&mut wasi, &grants.allowed_hosts);
        let outbound =
            Outbound { component: grants.component.clone(), hosts: grants.allowed_hosts.clone() };
        let variables = grants.variables.clone();
        Ok(Self::from_parts(wasi.build(), outbound, variables, nn, grants.limits.memory))
    }

    /// The state in which a component initialises before its snapshot: no environment, no variable, no
    /// model that computes, and random numbers and clocks that stand still.
    pub fn frozen(models: Option<&Path>) -> wasmtime::Result<Self> {
        let mut wasi = WasiCtxBuilder::new();
        wasi.allow_blocking_current_thread(true)
            .secure_random(StdRng::seed_from_u64(0))
            .insecure_random(StdRng::seed_from_u64(0))
            .insecure_random_seed(0)
            .wall_clock(Still)
            .monotonic_clock(Still);
        if let Some(models) = models {
            wasi.preopened_dir(models, MODELS, FsPerms::ReadOnly)?;
        }
        let nn = NnCtx {
            component: "".into(),
            came: Instant::now(),
            arrival: None,
            registry: Registry::default(),
            allowed: Arc::default(),
            observer: Arc::new(()),
            most_ticks: Limits::WHILE_FROZEN.ticks,
            used: Used::default(),
        };
        let outbound = Outbound { component: "".into(), hosts: Arc::default() };
        let memory = Limits::WHILE_FROZEN.memory;
        Ok(Self::from_parts(wasi.build(), outbound, Arc::default(), nn, memory))
    }

    fn from_parts(
        wasi: WasiCtx,
        outbound: Outbound,
        variables: Arc<BTreeMap<String, String>>,
        nn: NnCtx,
        memory: usize,
    ) -> Self {
        Self {
            table: ResourceTable::new(),
            wasi,
            http: WasiHttpCtx::new(),
            outbound,
            variables,
            nn,
            limits: StoreLimitsBuilder::new().memory_size(memory).build(),
        }
    }

    /// A store with this state.
    pub fn into_store(self, engine: &Engine) -> Store<Self> {
        let mut store = Store::new(engine, self);
        store.limiter(|state| &mut state.limits);
        // Guests that run give way to other work on their thread, and can be dropped then.
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut store| {
            let nn = store.data_mut().nn().ctx;
            nn.used.ticks += 1;
            if nn.used.ticks > nn.most_ticks {
                return Err(wasmtime::Error::msg("it has run for too long without computing"));
            }
            Ok(UpdateDeadline::Yield(1))
        });
        store
    }
}

/// The imports of components.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<InstanceState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi::p3::add_to_linker(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p3::add_to_linker(&mut linker)?;
    variables::add_to_linker(&mut linker)?;
    wit::add_to_linker(&mut linker)?;
    Ok(linker)
}

impl WasiView for InstanceState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for InstanceState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.outbound }
    }
}

impl VariablesState for InstanceState {
    fn variables(&mut self) -> VariablesView<'_> {
        VariablesView(&self.variables)
    }
}

impl NnState for InstanceState {
    fn nn(&mut self) -> NnView<'_> {
        NnView { table: &mut self.table, ctx: &mut self.nn }
    }
}

/// A clock that stands still.
struct Still;

impl HostWallClock for Still {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

impl HostMonotonicClock for Still {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        0
    }
}
