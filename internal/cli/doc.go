// Package cli is what the command lines of nvmecr's programs have in common:
// how flags take their values from variables, how errors are printed, exit
// statuses, and the version. Nothing in it keeps state.
package cli
