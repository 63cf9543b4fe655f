//! Bulk runs: any number of prompts, each answered once, in order.
