//! The integration tests, in one binary. `tests/README.md` describes each module.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "what fails in a test fails the test")]

// Shared by the tests: the exporter as a process, a web server in this process, and doubles of the cluster's services.
mod api_server;
mod connections;
mod harness;
mod kubelet;
mod node;
mod small_disk;
mod web;

mod advise;
mod alerts;
mod allocator;
mod architecture;
mod attribution;
mod budgets;
mod calls;
mod client;
mod command_line;
mod config;
mod dcgm;
mod declared_once;
mod demo;
mod dra;
mod drivers;
mod ending;
mod faults;
mod golden;
mod health;
mod http;
mod kubernetes;
mod kubernetes_api;
mod metrics_contract;
mod nvlink;
mod once;
mod openmetrics;
mod otlp;
mod owners;
mod page;
mod peaks;
mod pod_resources;
mod profiling;
mod recorder;
mod reliability;
mod reports;
mod run;
mod runbook;
mod scripts;
mod selection;
mod service;
mod slurm;
mod unified;
mod vgpu;
mod web_config;
mod web_guard;
mod web_limits;
mod web_sockets;
mod xids;
