/* The program `talweg`: finds the command that is asked for. What it knows of the library is in the public headers. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const twi_cli_command *const commands[] = {&twi_cli_doctor, &twi_cli_plan, &twi_cli_bench};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *to) {
    fputs("usage: talweg COMMAND [OPTIONS]\n"
          "       talweg COMMAND --help\n"
          "       talweg --help | --version\n"
          "\n",
          to);
    for (int c = 0; c < COMMANDS; c++) fprintf(to, "  %-8s %s\n", commands[c]->name, commands[c]->summary);
}

int twi_cli_refuse(const twi_cli_command *command, const char *problem, const char *argument) {
    const char *line = strchr(command->usage, '\n');
    if (problem) fprintf(stderr, "talweg %s: %s: %s\n", command->name, problem, argument);
    fprintf(stderr, "%.*s\ntalweg %s --help tells more\n", (int)(line - command->usage), command->usage, command->name);
    return TWI_CLI_REFUSED;
}

static int run(int argc, char **argv) {
    const char *wanted = argc > 1 ? argv[1] : "";
    if (strcmp(wanted, "--help") == 0 || strcmp(wanted, "-h") == 0) {
        print_usage(stdout);
        return TWI_CLI_DONE;
    }
    if (strcmp(wanted, "--version") == 0) {
        printf("talweg %s\n", tw_version());
        return TWI_CLI_DONE;
    }
    for (int c = 0; c < COMMANDS; c++) {
        if (strcmp(wanted, commands[c]->name) != 0) continue;
        char title[64];
        snprintf(title, sizeof title, "talweg %s", wanted);
        argv[1] = title;
        return commands[c]->run(argc - 1, argv + 1);
    }
    if (*wanted) fprintf(stderr, "talweg: there is no %s '%s'\n", *wanted == '-' ? "option" : "command", wanted);
    print_usage(stderr);
    return TWI_CLI_REFUSED;
}

int main(int argc, char **argv) {
    int status = run(argc, argv);
    if (!fflush(stdout) && !ferror(stdout)) return status;
    fputs("talweg: standard output cannot be written\n", stderr);
    return status ? status : TWI_CLI_FAILED;
}
