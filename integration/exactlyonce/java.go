package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/millrace/millrace/integration/peer"
)

//go:embed pom.xml
var pom []byte

//go:embed WordCount.java
var wordCount []byte

// oldClients is the last release of Apache Kafka's clients that knows the first protocol of transactions only (KIP-890 came with 4.0).
const oldClients = "3.9.1"

// java has the class path of the programs.
type java struct {
	classpath string
	// old says that they are oldClients.
	old bool
}

// compileBound is long for one small file.
const compileBound = 2 * time.Minute

var pomVersion = regexp.MustCompile(`<kafka.version>[^<]*`)

// openJava fetches the libraries that pom.xml names, or those of oldClients, and compiles our program, once for each content of the two files.
func openJava(ctx context.Context, old bool) (*java, error) {
	pom := pom
	if old {
		pom = pomVersion.ReplaceAll(pom, []byte("<kafka.version>"+oldClients))
	}
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: %s is missing", peer.ErrNoToolchain, tool)
		}
	}
	libraries, err := peer.Libraries(ctx, pom)
	if err != nil {
		return nil, err
	}
	jars := filepath.Join(libraries, "*")
	classes, err := peer.Filled(ctx, "classes", slices.Concat(pom, wordCount), func(ctx context.Context, dir string) error {
		file := filepath.Join(dir, "WordCount.java")
		if err := os.WriteFile(file, wordCount, 0o644); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, compileBound)
		defer cancel()
		out, err := exec.CommandContext(ctx, "javac", "-Xlint:all,-processing,-classfile", "-Werror", "-cp", jars, "-d", dir, file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("compile the word count: %w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &java{classpath: jars + ":" + classes, old: old}, nil
}

// config is the flag by which the verifiable programs are given a file of properties.
func (j *java) config(kind string) string {
	if j.old {
		return "--" + kind + ".config"
	}
	return "--command-config"
}

// command is the command line of a class. The heap is small and the compiler quick: many of them share a machine with the brokers.
func (j *java) command(class string, args ...string) []string {
	return append([]string{
		"java", "-Xmx160m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS", "-cp", j.classpath, class,
	}, args...)
}
