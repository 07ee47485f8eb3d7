/* Talweg: trains neural networks, image classifiers first, inside the program that links it.
 *
 * The headers in reading order: */
#ifndef TALWEG_TALWEG_H
#define TALWEG_TALWEG_H

#include <talweg/base.h>
#include <talweg/context.h>
#include <talweg/tensor.h>
#include <talweg/model.h>
#include <talweg/zoo.h>
#include <talweg/optim.h>
#include <talweg/data.h>
#include <talweg/trainer.h>
#include <talweg/program.h>
#include <talweg/io.h>

#endif
