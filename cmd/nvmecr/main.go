// Command nvmecr runs applications on checkpoint storage of their own, serves
// such storage, and reads it from outside. `nvmecr help` lists what it does.
package main

import (
	"os"

	"nvmecr/cmd/nvmecr/command"
)

func main() {
	os.Exit(command.Main(os.Args[1:]))
}
