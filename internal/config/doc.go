// Package config has the table of settings: their names on the command line and in the
// environment, their defaults, and their valid values.
//
// A setting "data-digest" is the flag --data-digest and the environment
// variable NVMECR_DATA_DIGEST. A flag wins over the environment, the
// environment over what the last run of the store recorded, that over the
// default. An empty variable counts as not set.
//
// Programs use it in two ways. A command binds the flags and resolves them
// once they are parsed; it hands the result to the processes it starts
// through Environ. The runtime inside an application reads FromEnv, which
// knows only those settings that Environ passes on: what is meant for the
// command alone, above all --fresh, never reaches a rank.
//
// A Config is a plain value; it is not safe for concurrent change.
// docs/configuration.md is printed from the table (see Markdown).
package config
