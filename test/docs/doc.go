// Package docs keeps the pages under docs, README.md and its neighbours true
// where a machine can tell: links lead somewhere, paths of pages that the
// source names exist, and messages that the pages quote are in the source.
// The scripts that docs/job-scripts.md prints are run by test/e2e.
package docs
