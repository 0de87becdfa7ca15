// Package e2e tests the finished command and libraries from outside: the
// demonstration, programs that are killed and restarted, and everything a
// user can get wrong.
package e2e
