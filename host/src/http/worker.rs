//! One instance for one request.

use std::collections::BTreeSet;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures::channel::oneshot;
use http::Method;
use wasmtime::AsContextMut;
use wasmtime::component::Linker;
use wasmtime_wasi_http::WasiHttpView;
use wasmtime_wasi_http::handler::{Prepared, ProxyPre, Request, Response};
use wasmtime_wasi_http::{p2, p3};

use super::in_flight::Timings;
use crate::component::engine::Instances;
use crate::component::state::{Grants, InstanceState};
use crate::nn::Registry;
use crate::nn::wit::{ComputeObserver, NnCtx, Used};

/// The life of an instance.
pub type Life = Pin<Box<dyn Future<Output = Result<(), InstanceFailed>> + Send>>;

/// An instance trapped, or the host could not run it. Why is in the log.
#[derive(Debug, thiserror::Error)]
#[error("the instance failed")]
pub struct InstanceFailed;

/// A component, ready to be instantiated for each request.
pub struct Served {
    instances: Instances,
    pre: ProxyPre<InstanceState>,
    grants: Grants,
    registry: Registry,
    ai_models: Arc<BTreeSet<String>>,
}

impl Served {
    /// Checks that the component has an HTTP handler and that all its imports are given.
    pub fn new(
        instances: Instances,
        linker: &Linker<InstanceState>,
        component: &wasmtime::component::Component,
        grants: Grants,
        registry: Registry,
        ai_models: BTreeSet<String>,
    ) -> wasmtime::Result<Self> {
        let pre = linker.instantiate_pre(component)?;
        let pre = match p3::bindings::ServicePre::new(pre.clone()) {
            Ok(pre) => ProxyPre::P3(pre),
            Err(error) => match p2::bindings::ProxyPre::new(pre) {
                Ok(pre) => ProxyPre::P2(pre),
                Err(_) => return Err(error),
            },
        };
        Ok(Self { instances, pre, grants, registry, ai_models: Arc::new(ai_models) })
    }

    /// Answers a request with a fresh instance. The head and the body of the answer go to `answer`; the
    /// returned future is the instance's life: it runs only while it is polled, and dropping it ends
    /// the guest wherever it is.
    pub fn answer(
        self: Arc<Self>,
        request: Request,
        id: Arc<str>,
        timings: Arc<Timings>,
        answer: oneshot::Sender<wasmtime::Result<Response>>,
    ) -> Life {
        Box::pin(async move {
            self.live(request, &id, timings, answer).await.map_err(|error| {
                let component = &self.grants.component;
                let why = error.root_cause();
                tracing::error!(request = %id, %component, "the instance failed: {why}");
                tracing::debug!(request = %id, "where it failed: {error:?}");
                InstanceFailed
            })
        })
    }

    async fn live(
        &self,
        request: Request,
        id: &Arc<str>,
        timings: Arc<Timings>,
        answer: oneshot::Sender<wasmtime::Result<Response>>,
    ) -> wasmtime::Result<()> {
        // Given back after the store is gone, and with it what it has of the pools.
        let _room = self.instances.room.acquire().await;
        let came = timings.received();
        let computes = timings.clone() as Arc<dyn ComputeObserver>;
        let nn = NnCtx {
            component: self.grants.component.clone(),
            came,
            // Models are asked for by POST.
            arrival: (request.method() == Method::POST)
                .then(|| self.registry.arrivals().enter(came)),
            registry: self.registry.clone(),
            allowed: self.ai_models.clone(),
            observer: computes,
            most_ticks: self.grants.limits.ticks,
            used: Used::default(),
        };
        let mut store =
            InstanceState::new(&self.grants, nn, id)?.into_store(&self.instances.engine);
        let proxy = self.pre.instantiate_async(&mut store).await?;
        timings.set_instantiated(Instant::now());
        store
            .run_concurrent(async |accessor| {
                let prepared = accessor.with(|mut access| {
                    let view = <InstanceState as WasiHttpView>::http;
                    Prepared::new(access.as_context_mut(), &proxy, request, view, answer)
                })?;
                prepared.run(accessor, pending()).await?;
                // The head is out; the body is written by tasks that the guest has left behind.
                poll_fn(|cx| accessor.poll_no_interesting_tasks(cx)).await;
                Ok(())
            })
            .await?
    }
}
